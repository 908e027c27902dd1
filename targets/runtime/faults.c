/* faults.c: what drivers do where a device fails them: how long they wait for it, and where code goes that it refused. */
#include "driver.h"
#include "rt.h"
#include "sha256.h"

static const uint64_t SECOND = 1000000000u, SPIN_NS = 200000, SHORTEST_NS = 20000, LONGEST_NS = 1000000;
enum { DEFAULT_SECONDS = 600, NAME_BYTES = 16, MOST_LOG = 1 << 16 };

uint64_t smelt_rt_patience(void) {
  const char *text = getenv("SMELT_DEVICE_SECONDS");
  uint64_t seconds = 0;
  if (!text || *text < '0' || *text > '9') seconds = DEFAULT_SECONDS;
  else
    for (; *text >= '0' && *text <= '9' && seconds < 100000000; text++) seconds = seconds * 10 + (uint64_t)(*text - '0');
  return seconds ? seconds * SECOND : UINT64_MAX;
}

/* At first without a pause, as most work is short; then with pauses of a 64th of the time so far. */
int32_t smelt_rt_poll(int32_t (*ask)(void *), void *state) {
  uint64_t begin = sm_now(), patience = smelt_rt_patience(), waited = 0;
  int32_t code;
  while ((code = ask(state)) > 0) {
    waited = sm_now() - begin;
    if (waited > patience) return SMELT_HANGS;
    uint64_t pause = waited / 64 < SHORTEST_NS ? SHORTEST_NS : waited / 64 > LONGEST_NS ? LONGEST_NS : waited / 64;
    if (waited < SPIN_NS) sm_yield();
    else sm_sleep((long)pause);
  }
  return code;
}

int32_t smelt_rt_sleep(int32_t (*ask)(void *), void *state, const void *told) {
  uint64_t begin = sm_now(), patience = smelt_rt_patience();
  int32_t code;
  while ((code = ask(state)) > 0) {
    if (sm_now() - begin > patience) return SMELT_HANGS;
    sm_futex_wait_for(told, 0, SECOND / 100);
  }
  return code;
}

static int write_file(const char *path, const void *bytes, size_t n) {
  sm_remove(path); /* of an earlier refusal; it may be another's, who then keeps it */
  int fd = sm_create(path), whole = fd >= 0 && sm_write_all(fd, bytes, n);
  if (fd >= 0) sm_close(fd);
  return whole;
}

void smelt_rt_refused(const char *ending, const void *code, size_t n, const char *log, char *told, size_t room) {
  char path[RT_PATH_BYTES];
  uint8_t digest[32];
  sha256_state s;
  told[0] = 0;
  if (!rt_cache_folder("refused", path)) return;
  sha256_start(&s);
  sha256_add(&s, code, n);
  sha256_end(&s, digest);
  char *at = path + strlen(path);
  *at++ = '/';
  *at = 0;
  rt_make_folders(path);
  for (int i = 0; i < NAME_BYTES; i++) at += snprintf(at, 3, "%02x", digest[i]);
  snprintf(at, 16, ".log");
  size_t length = strlen(log);
  int whole = write_file(path, log, length < MOST_LOG ? length : MOST_LOG);
  snprintf(at, 16, ".%.8s", ending);
  if (write_file(path, code, n) && whole) snprintf(told, room, "; the code is in %s, what the driver said in .log beside it", path);
}
