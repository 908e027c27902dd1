/* runner_fence.c: the highest fencing token, kept in a file under a lock, and the lock of the runner at work. */
#include "runner_fence.h"

enum { PATH_CAP = 4096, LOCK_EX = 2, LOCK_NB = 4, LOCK_UN = 8, PATIENCE_MS = 2000, GIVE_UP_MS = 6000, STEP_MS = 10 };
typedef struct { uint64_t token; uint32_t crc, zero; } record;
typedef struct { uint64_t token; uint32_t pid, crc; } occupant;
enum { RECORD_BYTES = 12, OCCUPANT_BYTES = 12 };

static void nap(void) { sys_poll(NULL, 0, STEP_MS * I(1000000)); }

static int locked(int fd, int limit_ms) {
  for (int waited = 0;; waited += STEP_MS) {
    long got = sys(NR_flock, fd, LOCK_EX | LOCK_NB, 0, 0, 0, 0);
    if (got == 0) return 1;
    if ((got != -SYS_EAGAIN && got != -SYS_EINTR) || waited >= limit_ms) return 0;
    nap();
  }
}

static int create(const char *path) {
  enum { CREATE = 0100 };
  return (int)sys(NR_openat, SYS_AT_FDCWD, (long)path, SYS_O_RDWR | CREATE | SYS_O_CLOEXEC, 0600, 0, 0);
}

const char *fence_open(fence_place *p, const uint8_t *path, size_t n) {
  static const char suffix[] = ".busy";
  char name[PATH_CAP];
  if (p->file >= 0) sys_close(p->file);
  if (p->busy >= 0) sys_close(p->busy);
  p->file = p->busy = -1;
  if (n == 0) return NULL;
  if (path[0] != '/' || n + sizeof suffix > sizeof name) return "the path of the fence file is not absolute, or too long";
  for (size_t i = 0; i < n; i++)
    if (!path[i]) return "the path of the fence file has a zero byte";
  memcpy(name, path, n);
  name[n] = 0;
  if ((p->file = create(name)) < 0) return "the fence file cannot be opened; is the disk full or read-only?";
  memcpy(name + n, suffix, sizeof suffix);
  if ((p->busy = create(name)) < 0) return "the lock beside the fence file cannot be opened; is the disk full or read-only?";
  return NULL;
}

static uint64_t highest_of(const fence_place *p) { /* 0 without one */
  record r = {0, 0, 0};
  if (p->file < 0 || sys(NR_pread64, p->file, (long)&r, RECORD_BYTES, 0, 0, 0) != RECORD_BYTES) return 0;
  return r.crc == crc32_of(0, (const uint8_t *)&r.token, 8) ? r.token : 0;
}

static int older(uint64_t token, uint64_t highest) { return token < highest; }

int fence_passed(const fence_place *p, uint64_t token) { return older(token, highest_of(p)); }

int fence_admit(fence_place *p, uint64_t token) {
  if (p->file < 0) return 1;
  if (!locked(p->file, GIVE_UP_MS)) return -1;
  uint64_t highest = highest_of(p);
  int result = !older(token, highest);
  if (result && token != highest) {
    record r = {token, 0, 0};
    r.crc = crc32_of(0, (const uint8_t *)&r.token, 8);
    if (sys(NR_pwrite64, p->file, (long)&r, RECORD_BYTES, 0, 0, 0) != RECORD_BYTES || sys(NR_fsync, p->file, 0, 0, 0, 0, 0) < 0)
      result = -1;
  }
  sys(NR_flock, p->file, LOCK_UN, 0, 0, 0, 0);
  return result;
}

int fence_occupy(fence_place *p, uint64_t token) {
  if (p->busy < 0) return 0;
  int got = locked(p->busy, PATIENCE_MS);
  if (!got) { /* whoever holds the lock is alive, so its pid is its own, unless the disk has changed it */
    occupant o = {0, 0, 0};
    long n = sys(NR_pread64, p->busy, (long)&o, sizeof o, 0, 0, 0);
    int whole = n == sizeof o && o.crc == crc32_of(0, (const uint8_t *)&o, OCCUPANT_BYTES);
    if (whole && o.token < token && o.pid > 1 && o.pid < 0x7fffffff) sys_kill((int)o.pid, SYS_SIGKILL);
    got = locked(p->busy, GIVE_UP_MS - PATIENCE_MS);
  }
  occupant self = {token, (uint32_t)sys_getpid(), 0};
  self.crc = crc32_of(0, (const uint8_t *)&self, OCCUPANT_BYTES);
  if (got) sys(NR_pwrite64, p->busy, (long)&self, sizeof self, 0, 0, 0);
  return got ? 0 : -1;
}

void fence_vacate(fence_place *p) {
  if (p->busy >= 0) sys(NR_flock, p->busy, LOCK_UN, 0, 0, 0, 0);
}
