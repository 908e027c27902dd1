/* runner_crash.c: the handler of fatal signals; it runs on a stack of its own and allocates nothing. */
#include "runner_crash.h"

static int crash_pipe = -1;

/* Which mapped file holds pc, by /proc/self/maps; reads in pieces, allocates nothing. */
static void find_object(crash_record *r) {
  static char text[8192];
  int fd = sys_open("/proc/self/maps", SYS_O_RDONLY);
  size_t have = 0;
  uint64_t first_start = 0;
  char last_name[sizeof r->object] = "";
  for (;;) {
    long n = fd < 0 ? 0 : sys_read(fd, text + have, sizeof text - 1 - have);
    if (n <= 0) break;
    have += (size_t)n;
    text[have] = 0;
    char *line = text, *p;
    for (;;) {
      char *end = line;
      while (*end && *end != '\n') end++;
      if (!*end) break;
      uint64_t bounds[2] = {0, 0};
      p = line;
      for (int i = 0; i < 2; i++, p++)
        for (; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
          bounds[i] = bounds[i] * 16 + (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
      char *name = end;
      while (name > p && name[-1] != '/' && name[-1] != ' ') name--;
      size_t length = (size_t)(end - name) < sizeof last_name - 1 ? (size_t)(end - name) : sizeof last_name - 1;
      if (!length || length != strlen(last_name) || memcmp(name, last_name, length)) first_start = bounds[0];
      memcpy(last_name, name, length);
      last_name[length] = 0;
      if (r->pc >= bounds[0] && r->pc < bounds[1]) {
        if (library_alias[0] && !strcmp(last_name, library_alias)) memcpy(r->object, library_name, sizeof library_name);
        else memcpy(r->object, last_name, sizeof last_name);
        r->offset = r->pc - first_start;
        sys_close(fd);
        return;
      }
      line = end + 1;
    }
    have = (size_t)(text + have - line);
    memmove(text, line, have);
    if (have == sizeof text - 1) break;
  }
  if (fd >= 0) sys_close(fd);
}

static void on_fatal(int number, void *info, void *context) {
  static crash_record r;
  unsigned long address, pc;
  r.number = number;
  memcpy(&r.code, (char *)info + 8, 4);
  memcpy(&address, (char *)info + (sizeof(long) == 8 ? 16 : 12), sizeof address);
  memcpy(&pc, (char *)context + SYS_UCONTEXT_PC, sizeof pc);
  r.address = number == SYS_SIGABRT ? 0 : address;
  r.pc = pc;
  find_object(&r);
  write_all(crash_pipe, &r, sizeof r);
  /* SA_RESETHAND: the instruction (or abort) runs again and now kills the process with the true signal */
}

void catch_fatal(int pipe) {
  static const int numbers[] = {SYS_SIGSEGV, SYS_SIGBUS, SYS_SIGILL, SYS_SIGFPE, SYS_SIGABRT};
  struct { void *at; int flags; size_t size; } stack = {sys_map(65536), 0, 65536}; /* a stack overflow needs its own */
  crash_pipe = pipe;
  if (stack.at) sys(NR_sigaltstack, (long)&stack, 0, 0, 0, 0, 0);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    sys_on_signal(numbers[i], on_fatal, 0x80000000u | 0x08000000u | 4u); /* RESETHAND | ONSTACK | SIGINFO */
}
