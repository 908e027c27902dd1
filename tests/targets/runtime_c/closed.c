/* closed.c: calls with a session that is closed, whose memory malloc has given to nobody else, are refused, and none waits for ever. */
#include <stdio.h>
#include <string.h>

#define SMELT_PREFIX smelt
#include "smelt.h"

void free(void *at) { (void)at; }

static int refused(const char *what, smelt_status status) {
  const char *why = smelt_error(NULL);
  int fine = status == SMELT_INVALID && why && strstr(why, "or closed");
  if (!fine) printf("%s: status %d, '%s'\n", what, (int)status, why ? why : "");
  return !fine;
}

int main(int argc, char **argv) {
  smelt_options options = {.struct_size = sizeof options, .threads = 2};
  smelt_memory stats;
  smelt_session *s, *entry, *copy;
  if (argc < 2 || smelt_open(argv[1], &options, &s)) return printf("%s\n", smelt_error(NULL)), 1;
  entry = smelt_entry(s, smelt_entry_name(s, 0));
  smelt_close(s);
  smelt_close(s);
  smelt_close(entry);
  smelt_cancel(s);
  int bad = refused("run", smelt_run(s, NULL, 0, NULL, 0)) + refused("run", smelt_run(entry, NULL, 0, NULL, 0));
  bad += refused("trim", smelt_trim(s)) + refused("fork", smelt_fork(s, &copy)) + refused("reset", smelt_reset(s));
  bad += refused("stats", smelt_memory_stats(s, &stats)) + refused("profile", smelt_profile(s, 1));
  if (!bad) puts("OK");
  return bad;
}
