/* runner_descendants.c: /proc -> the tree of processes under this one; kills it until nothing of it is left. */
#include "runner_descendants.h"

#include "runner_frames.h"

enum { PROCESSES_MAX = 16384 };
typedef struct { int pid, parent, ours, dead; } process;

static int number_of(const char *s) { /* of a name that is only digits; else -1 */
  int value = 0;
  if (!*s) return -1;
  for (; *s; s++) {
    if (*s < '0' || *s > '9' || value > 100000000) return -1;
    value = 10 * value + (*s - '0');
  }
  return value;
}

/* /proc/PID/stat: "pid (any name) state parent ..."; 0, or -1 when there is no such process any more. */
static int look_at(process *p) {
  char path[32], text[512];
  buffer name = {(uint8_t *)path, 0, 0, sizeof path};
  put_format(&name, "/proc/%u/stat", U(p->pid));
  path[name.len] = 0;
  size_t n = read_small(path, text, sizeof text);
  while (n && text[n - 1] != ')') n--;
  if (!n || text[n] != ' ' || !text[n + 1]) return -1;
  p->dead = text[n + 1] == 'Z' || text[n + 1] == 'X';
  p->parent = 0;
  for (const char *d = text + n + 3; *d >= '0' && *d <= '9'; d++) p->parent = 10 * p->parent + (*d - '0');
  return 0;
}

static size_t list_processes(process *found) {
  static char entries[32768];
  size_t count = 0;
  long n;
  int fd = sys_open("/proc", SYS_O_RDONLY);
  while (fd >= 0 && count < PROCESSES_MAX && (n = sys(NR_getdents64, fd, (long)entries, sizeof entries, 0, 0, 0)) > 0)
    for (long at = 0; at < n && count < PROCESSES_MAX;) { /* the kernel's linux_dirent64: inode, offset, u16 length, u8 type, name */
      uint16_t length;
      memcpy(&length, entries + at + 16, sizeof length);
      process p = {number_of(entries + at + 19), 0, 0, 0};
      if (p.pid > 0 && !look_at(&p)) found[count++] = p;
      at += length;
    }
  if (fd >= 0) sys_close(fd);
  return count;
}

/* Mark those whose line of parents leads to this process. */
static void mark(process *all, size_t count, int self) {
  for (int more = 1; more;) {
    more = 0;
    for (size_t i = 0; i < count; i++) {
      if (all[i].ours) continue;
      int ours = all[i].parent == self;
      for (size_t k = 0; !ours && k < count; k++) ours = all[k].ours && all[k].pid == all[i].parent;
      all[i].ours = ours;
      more |= ours;
    }
  }
}

void adopt_orphans(void) { sys_prctl(36 /* PR_SET_CHILD_SUBREAPER */, 1); }

void end_descendants(int limit_ms) {
  static process all[PROCESSES_MAX];
  int status;
  for (int waited = 0; waited < limit_ms; waited += 2) {
    int pid;
    while ((pid = sys_wait(-1, &status, SYS_WNOHANG)) > 0) {}
    if (pid < 0 && pid != -SYS_EINTR) return; /* no child is left, so nothing is: an orphan is a child */
    size_t count = list_processes(all);
    mark(all, count, sys_getpid());
    for (size_t i = 0; i < count; i++)
      if (all[i].ours && !all[i].dead) sys_kill(all[i].pid, SYS_SIGKILL);
    sys_poll(NULL, 0, 2000000);
  }
}
