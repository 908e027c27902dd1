/* refused.c: code that a driver refuses, kept after other work has left slashes on the stack; what is in the folder then. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "rt.h"
#include "driver.h"

enum { LEFT_BYTES = 1 << 15 };

__attribute__((noinline)) static int leave_slashes(void) {
  volatile char left[LEFT_BYTES];
  for (int i = 0; i < LEFT_BYTES; i++) left[i] = i % 64 == 63 ? 0 : i % 2 ? '/' : 'x';
  return left[0];
}

int main(void) {
  char told[1024], path[4096];
  if (!leave_slashes()) return 1;
  smelt_rt_refused("spv", "code", 4, "log", told, sizeof told);
  if (!strstr(told, "the code is in ")) return printf("told '%s'\n", told), 1;
  snprintf(path, sizeof path, "%s/refused", getenv("SMELT_CACHE"));
  DIR *folder = opendir(path);
  int files = 0, others = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    if (entry->d_name[0] == '.') continue;
    const char *ending = strrchr(entry->d_name, '.');
    if (ending && (!strcmp(ending, ".spv") || !strcmp(ending, ".log"))) files++;
    else others++, printf("found '%s'\n", entry->d_name);
  }
  closedir(folder);
  if (files != 2 || others) return 1;
  puts("OK");
  return 0;
}
