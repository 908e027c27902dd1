/* runner_crash.c: the handler of fatal signals; it runs on a stack of its own and allocates nothing. */
#include "runner_crash.h"

static int crash_pipe = -1;

typedef struct { /* a line of /proc/self/maps */
  uint64_t start, end;
  int code; /* may be executed */
  char name[NAME_SIZE];
} mapping;

/* What the mappings tell about a crash. first: where the file of the last line begins in memory. */
typedef struct {
  uint64_t sp, stack_end, self, first, code_start, code_end, code_first;
  char last[NAME_SIZE];
} memory_map;

static uint64_t hexadecimal(const char **p) {
  uint64_t value = 0;
  for (; (**p >= '0' && **p <= '9') || (**p >= 'a' && **p <= 'f'); ++*p) value = value * 16 + (uint64_t)(**p <= '9' ? **p - '0' : **p - 'a' + 10);
  return value;
}

static void read_mapping(const char *line, const char *end, mapping *m) {
  m->start = hexadecimal(&line);
  line++;
  m->end = hexadecimal(&line);
  m->code = end - line > 3 && line[3] == 'x';
  const char *name = end;
  while (name > line && name[-1] != '/' && name[-1] != ' ') name--;
  size_t length = (size_t)(end - name) < sizeof m->name - 1 ? (size_t)(end - name) : sizeof m->name - 1;
  memcpy(m->name, name, length);
  m->name[length] = 0;
}

/* The model's own code: of the library, or of this program where the model is linked in. */
static int is_model(const memory_map *map, const mapping *m) {
  if (!m->code) return 0;
  if (!library_name[0]) return map->self >= m->start && map->self < m->end;
  return !strcmp(m->name, library_alias[0] ? library_alias : library_name);
}

static void take_mapping(memory_map *map, const mapping *m, crash_record *r) {
  if (m->name[0] && strcmp(m->name, map->last)) { /* between parts of a file there may be gaps without a name */
    map->first = m->start;
    memcpy(map->last, m->name, sizeof map->last);
  }
  if (map->sp >= m->start && map->sp < m->end) map->stack_end = m->end;
  if (is_model(map, m)) map->code_start = m->start, map->code_end = m->end, map->code_first = map->first;
  if (r->pc < m->start || r->pc >= m->end) return;
  memcpy(r->object, library_alias[0] && !strcmp(m->name, library_alias) ? library_name : m->name, sizeof r->object);
  r->offset = r->pc - (m->name[0] ? map->first : m->start);
}

/* /proc/self/maps in pieces, without allocating. */
static void read_maps(memory_map *map, crash_record *r) {
  static char text[8192];
  static mapping m;
  int fd = sys_open("/proc/self/maps", SYS_O_RDONLY);
  size_t have = 0;
  for (;;) {
    long n = fd < 0 ? 0 : sys_read(fd, text + have, sizeof text - 1 - have);
    if (n <= 0) break;
    have += (size_t)n;
    text[have] = 0;
    char *line = text;
    for (char *end; (end = line, *end); line = end + 1) {
      while (*end && *end != '\n') end++;
      if (!*end) break;
      read_mapping(line, end, &m);
      take_mapping(map, &m, r);
    }
    have = (size_t)(text + have - line);
    memmove(text, line, have);
    if (have == sizeof text - 1) break;
  }
  if (fd >= 0) sys_close(fd);
}

static void add_frame(const memory_map *map, crash_record *r, uint64_t pc) {
  if (r->count < CRASH_FRAMES && pc > map->code_start && pc < map->code_end) r->frames[r->count++] = pc - map->code_first;
}

/* Code has no frame pointers and no unwind tables, so that what is a return address is found by its value: each word on the stack
 * that points into the model's code. The host leaves out those that follow no call (smelt/crash.py). */
static void read_stack(const memory_map *map, crash_record *r) {
  enum { STACK_MAX = 64 << 10 };
  uint64_t at = (map->sp + sizeof(long) - 1) / sizeof(long) * sizeof(long), end = map->stack_end;
  if (end > at + STACK_MAX) end = at + STACK_MAX;
  for (; at + sizeof(long) <= end; at += sizeof(long)) add_frame(map, r, *(const unsigned long *)(uintptr_t)at);
}

static unsigned long register_at(const void *context, size_t offset) {
  unsigned long value;
  memcpy(&value, (const char *)context + offset, sizeof value);
  return value;
}

/* Threads that share a kernel fault at the same moment. One of them records; the others wait for it to end the process, which the
 * first one's default action would do before the record is written. */
static int is_recorder(int number) {
  static int recorder;
  int self = (int)sys(NR_gettid, 0, 0, 0, 0, 0, 0), taken = 0;
  if (__atomic_compare_exchange_n(&recorder, &taken, self, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
  while (taken != self) sys_poll(NULL, 0, -1);
  sys_on_signal(number, NULL, 0); /* a fault of another kind in the recorder itself */
  return 0;
}

static void on_fatal(int number, void *info, void *context) {
  static crash_record r;
  static memory_map map;
  unsigned long address;
  if (!is_recorder(number)) return;
  r.number = number;
  memcpy(&r.code, (char *)info + 8, 4);
  memcpy(&address, (char *)info + (sizeof(long) == 8 ? 16 : 12), sizeof address);
  r.address = number == SYS_SIGABRT ? 0 : address;
  r.pc = register_at(context, SYS_UCONTEXT_PC);
  map.sp = register_at(context, SYS_UCONTEXT_SP);
  map.self = (uint64_t)(uintptr_t)on_fatal;
  read_maps(&map, &r);
  if (SYS_UCONTEXT_LR) add_frame(&map, &r, register_at(context, SYS_UCONTEXT_LR));
  read_stack(&map, &r);
  write_all(crash_pipe, &r, sizeof r);
  sys_on_signal(number, NULL, 0); /* the instruction (or abort) runs again and now kills the process with the true signal */
  if (r.code <= 0) sys(NR_kill, sys(NR_getpid, 0, 0, 0, 0, 0, 0), number, 0, 0, 0, 0); /* nothing would come again: another process sent it */
}

void catch_fatal(int pipe) {
  static const int numbers[] = {SYS_SIGSEGV, SYS_SIGBUS, SYS_SIGILL, SYS_SIGFPE, SYS_SIGABRT};
  struct { void *at; int flags; size_t size; } stack = {sys_map(65536), 0, 65536}; /* a stack overflow needs its own */
  crash_pipe = pipe;
  if (stack.at) sys(NR_sigaltstack, (long)&stack, 0, 0, 0, 0, 0);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    sys_on_signal(numbers[i], on_fatal, 0x08000000u | 4u); /* ONSTACK | SIGINFO */
}

/* ---- the kernel's own words ---- */
int kernel_log_open(void) {
  int fd = sys_open("/dev/kmsg", SYS_O_RDONLY | SYS_O_NONBLOCK);
  if (fd >= 0) sys_seek_end(fd);
  return fd;
}

/* A record is "6,1234,5678,-;text\n" and perhaps lines that begin with a space; the text is what people read. */
size_t kernel_log_read(int fd, char *to, size_t cap) {
  char record[1024];
  size_t have = 0;
  long n;
  while (fd >= 0 && ((n = sys_read(fd, record, sizeof record)) > 0 || n == -SYS_EPIPE)) {
    size_t start = 0, end = 0;
    while (start < (size_t)(n > 0 ? n : 0) && record[start++] != ';') {}
    for (end = start; end < (size_t)(n > 0 ? n : 0) && record[end] != '\n'; end++) {}
    size_t length = end - start;
    if (!length) continue;
    if (length + 1 > cap) break;
    if (have + length + 1 > cap) { /* the last lines are those about the crash */
      size_t drop = have + length + 1 - cap;
      memmove(to, to + drop, have - drop);
      have -= drop;
    }
    memcpy(to + have, record + start, length);
    to[have + length] = '\n';
    have += length + 1;
  }
  return have;
}
