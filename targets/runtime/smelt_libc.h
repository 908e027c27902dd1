/* smelt_libc.h: the few libc functions and system calls that the device code uses, declared by hand.
 * Why: the C compiler that we ship has no bionic headers, and one object must serve glibc, musl and bionic, 64 and 32 bit.
 * So nothing here depends on a struct layout or a macro of one libc: what would (off_t, time_t, errno, pthread_mutex_t) goes
 * to the kernel directly, whose ABI is the same under every libc. */
#ifndef SMELT_LIBC_H
#define SMELT_LIBC_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* ---- libc: signatures that are equal everywhere ---- */
void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void free(void *);
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
size_t strlen(const char *);
int strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t);
char *strchr(const char *, int);
char *strrchr(const char *, int);
char *strstr(const char *, const char *);
int snprintf(char *, size_t, const char *, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char *, size_t, const char *, va_list);
char *getenv(const char *);
void exit(int) __attribute__((noreturn));
void abort(void) __attribute__((noreturn));

/* ---- libdl ---- */
typedef struct {
  const char *file;
  void *base;
  const char *symbol;
  void *address;
} sm_dlinfo; /* Dl_info */
void *dlopen(const char *, int);
void *dlsym(void *, const char *);
int dlclose(void *);
char *dlerror(void);
int dladdr(const void *, sm_dlinfo *);
enum { SM_RTLD_NOW = 2 }; /* bionic 32-bit has RTLD_NOW 0; 2 is RTLD_GLOBAL there, which is harmless for a driver */

/* ---- threads: pthread_t is one word, an attribute object at most 64 bytes, in all three libcs ---- */
typedef unsigned long sm_thread;
typedef union {
  char opaque[128];
  uint64_t align[16];
} sm_thread_attr;
int pthread_create(sm_thread *, const sm_thread_attr *, void *(*)(void *), void *);
int pthread_join(sm_thread, void **);
int pthread_attr_init(sm_thread_attr *);
int pthread_attr_setstacksize(sm_thread_attr *, size_t);
int pthread_attr_destroy(sm_thread_attr *);

/* ---- system calls. Each returns the kernel's value: -errno on failure ---- */
#if defined(__x86_64__)
enum {
  SM_read = 0, SM_write = 1, SM_close = 3, SM_lseek = 8, SM_mmap = 9, SM_munmap = 11, SM_rt_sigprocmask = 14,
  SM_sched_yield = 24, SM_mremap = 25, SM_madvise = 28, SM_nanosleep = 35, SM_getpid = 39, SM_wait4 = 61, SM_kill = 62, SM_fcntl = 72, SM_flock = 73,
  SM_setpgid = 109,
  SM_prctl = 157, SM_gettid = 186, SM_futex = 202, SM_sched_setaffinity = 203, SM_sched_getaffinity = 204, SM_getdents64 = 217, SM_clock_gettime = 228,
  SM_exit_group = 231, SM_getcpu = 309, SM_openat = 257, SM_mkdirat = 258, SM_unlinkat = 263, SM_renameat2 = 316, SM_ppoll = 271, SM_dup3 = 292, SM_pipe2 = 293, SM_prlimit64 = 302, SM_getrandom = 318, SM_statx = 332
};
static inline long sm_syscall(long n, long a, long b, long c, long d, long e, long f) {
  long r;
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return r;
}
#elif defined(__aarch64__) || (defined(__riscv) && __riscv_xlen == 64)
enum {
  SM_dup3 = 24, SM_fcntl = 25, SM_flock = 32, SM_mkdirat = 34, SM_getdents64 = 61, SM_unlinkat = 35, SM_renameat2 = 276, SM_openat = 56, SM_close = 57, SM_pipe2 = 59, SM_lseek = 62, SM_read = 63, SM_write = 64, SM_ppoll = 73,
  SM_exit_group = 94, SM_futex = 98, SM_nanosleep = 101, SM_clock_gettime = 113, SM_sched_setaffinity = 122, SM_sched_getaffinity = 123,
  SM_sched_yield = 124, SM_kill = 129, SM_rt_sigprocmask = 135, SM_setpgid = 154, SM_prctl = 167, SM_getpid = 172,
  SM_getcpu = 168, SM_gettid = 178, SM_munmap = 215, SM_mremap = 216, SM_mmap = 222, SM_madvise = 233, SM_wait4 = 260, SM_prlimit64 = 261, SM_getrandom = 278, SM_statx = 291
};
#if defined(__aarch64__)
static inline long sm_syscall(long n, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
  return x0;
}
#else
static inline long sm_syscall(long n, long a, long b, long c, long d, long e, long f) {
  register long a7 __asm__("a7") = n, a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c;
  register long a3 __asm__("a3") = d, a4 __asm__("a4") = e, a5 __asm__("a5") = f;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
  return a0;
}
#endif
#elif defined(__arm__)
enum {
  SM_read = 3, SM_write = 4, SM_close = 6, SM_getpid = 20, SM_kill = 37, SM_setpgid = 57, SM_munmap = 91, SM_wait4 = 114,
  SM_llseek = 140, SM_flock = 143, SM_sched_yield = 158, SM_nanosleep = 162, SM_mremap = 163, SM_prctl = 172, SM_rt_sigprocmask = 175, SM_mmap2 = 192, SM_getdents64 = 217,
  SM_madvise = 220, SM_fcntl = 221 /* fcntl64 */, SM_gettid = 224, SM_futex = 240, SM_sched_setaffinity = 241, SM_sched_getaffinity = 242, SM_getcpu = 345, SM_exit_group = 248,
  SM_clock_gettime = 263, SM_openat = 322, SM_mkdirat = 323, SM_unlinkat = 328, SM_renameat2 = 382, SM_ppoll = 336, SM_dup3 = 358, SM_pipe2 = 359, SM_prlimit64 = 369, SM_getrandom = 384, SM_statx = 397
};
static inline long sm_syscall(long n, long a, long b, long c, long d, long e, long f) {
  register long r7 __asm__("r7") = n, r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
  register long r3 __asm__("r3") = d, r4 __asm__("r4") = e, r5 __asm__("r5") = f;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory", "cc");
  return r0;
}
#else
#error "no system-call table for this architecture: add one here"
#endif

static inline int sm_failed(long r) { return (unsigned long)r > (unsigned long)-4096L; }

/* A file opened for reading, closed on exec; negative on failure. A pipe is not waited for. */
static inline int sm_open(const char *path) {
  return (int)sm_syscall(SM_openat, -100 /* AT_FDCWD */, (long)path, 02004000 /* O_RDONLY | O_CLOEXEC | O_NONBLOCK */, 0, 0, 0);
}
/* Another number for an open file, closed on exec; negative on failure. */
static inline int sm_duplicate(int fd) { return (int)sm_syscall(SM_fcntl, fd, 1030 /* F_DUPFD_CLOEXEC */, 0, 0, 0, 0); }
static inline void sm_close(int fd) { sm_syscall(SM_close, fd, 0, 0, 0, 0, 0); }
/* Wait until no other opening of this file is held, and hold this one, or let go of it, also where a fork has made copies. */
static inline void sm_hold(int fd) {
  while (sm_syscall(SM_flock, fd, 2 /* LOCK_EX */, 0, 0, 0, 0) == -4 /* EINTR */) continue;
}
static inline void sm_let_go(int fd) { sm_syscall(SM_flock, fd, 8 /* LOCK_UN */, 0, 0, 0, 0); }

/* Move an open file's place by `to` from its start (0) or its end (2); where it is then, negative on failure. */
static inline int64_t sm_seek(int fd, int64_t to, int from) {
#if defined(__arm__)
  int64_t at = 0; /* no 64-bit argument in registers: ARM would want them paired */
  long r = sm_syscall(SM_llseek, fd, (long)(to >> 32), (long)to, (long)&at, from, 0);
  return r < 0 ? r : at;
#else
  return sm_syscall(SM_lseek, fd, (long)to, from, 0, 0, 0);
#endif
}
/* Length of an open file; negative on failure. Directories and pipes fail or give nonsense: reading them fails later. */
static inline int64_t sm_file_size(int fd) { return sm_seek(fd, 0, 2); }

/* Read n bytes at the file's place; 0 when there are fewer. */
static inline int sm_read_all(int fd, void *to, size_t n) {
  for (char *at = to; n;) {
    long r = sm_syscall(SM_read, fd, (long)at, (long)(n < 1 << 30 ? n : 1 << 30), 0, 0, 0);
    if (r == -4 /* EINTR */) continue;
    if (r <= 0) return 0;
    at += r, n -= (size_t)r;
  }
  return 1;
}

/* A file for writing that nobody has yet, for this user alone, closed on exec; negative on failure. */
static inline int sm_create(const char *path) {
  return (int)sm_syscall(SM_openat, -100 /* AT_FDCWD */, (long)path, 02000301 /* O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC */, 0600, 0, 0);
}
/* Write n bytes; 0 when the system takes fewer. */
static inline int sm_write_all(int fd, const void *from, size_t n) {
  for (const char *at = from; n;) {
    long r = sm_syscall(SM_write, fd, (long)at, (long)(n < 1 << 30 ? n : 1 << 30), 0, 0, 0);
    if (r == -4 /* EINTR */) continue;
    if (r <= 0) return 0;
    at += r, n -= (size_t)r;
  }
  return 1;
}
static inline void sm_make_folder(const char *path) { sm_syscall(SM_mkdirat, -100 /* AT_FDCWD */, (long)path, 0700, 0, 0, 0); }
static inline void sm_remove(const char *path) { sm_syscall(SM_unlinkat, -100 /* AT_FDCWD */, (long)path, 0, 0, 0, 0); }
/* In the place of what is there; 0 on failure. */
static inline int sm_rename(const char *from, const char *to) {
  return !sm_syscall(SM_renameat2, -100 /* AT_FDCWD */, (long)from, -100, (long)to, 0, 0);
}

/* When an open file was last written, in seconds and nanoseconds; 0 on a system that does not say (before Linux 4.11). */
static inline int sm_file_time(int fd, int64_t time[2]) {
  struct { uint32_t head[28]; int64_t seconds; uint32_t nanoseconds, rest[97]; } all; /* the kernel's struct statx */
  long r = sm_syscall(SM_statx, fd, (long)"", 0x1000 /* AT_EMPTY_PATH */, 0x40 /* STATX_MTIME */, (long)&all, 0);
  if (r) return 0;
  time[0] = all.seconds, time[1] = all.nanoseconds;
  return 1;
}

enum { SM_PROT_READ = 1, SM_PROT_WRITE = 2, SM_MAP_SHARED = 1, SM_MAP_PRIVATE = 2, SM_MAP_ANONYMOUS = 0x20 };
enum { SM_MADV_WILLNEED = 3, SM_MADV_HUGEPAGE = 14 };
/* mmap at offset 0; NULL on failure. */
static inline void *sm_mmap(size_t bytes, int prot, int flags, int fd) {
#if defined(__arm__)
  long r = sm_syscall(SM_mmap2, 0, (long)bytes, prot, flags, fd, 0);
#else
  long r = sm_syscall(SM_mmap, 0, (long)bytes, prot, flags, fd, 0);
#endif
  return sm_failed(r) ? NULL : (void *)r;
}
static inline void sm_munmap(void *at, size_t bytes) { sm_syscall(SM_munmap, (long)at, (long)bytes, 0, 0, 0, 0); }
/* To `bytes` bytes, elsewhere if need be; NULL on failure. */
static inline void *sm_mremap(void *at, size_t old, size_t bytes) {
  enum { MAY_MOVE = 1 };
  long r = sm_syscall(SM_mremap, (long)at, (long)old, (long)bytes, MAY_MOVE, 0, 0);
  return sm_failed(r) ? NULL : (void *)r;
}
static inline void sm_madvise(void *at, size_t bytes, int advice) {
  sm_syscall(SM_madvise, (long)at, (long)bytes, advice, 0, 0, 0);
}

static inline int sm_getpid(void) { return (int)sm_syscall(SM_getpid, 0, 0, 0, 0, 0, 0); }
static inline int sm_gettid(void) { return (int)sm_syscall(SM_gettid, 0, 0, 0, 0, 0, 0); }

/* Bytes that nobody can foresee; 0 when the kernel (before 3.17) has none, or none yet. */
static inline int sm_random(void *to, size_t bytes) {
  return sm_syscall(SM_getrandom, (long)to, (long)bytes, 1 /* GRND_NONBLOCK */, 0, 0, 0) == (long)bytes;
}

/* Processors that this thread may run on. bytes: of the mask that the kernel has written; negative: it has not. */
typedef struct {
  unsigned long mask[128 / sizeof(long)]; /* 1024 processors, the kernel's default limit */
  long bytes;
} sm_cpus;
static inline sm_cpus sm_allowed(void) {
  sm_cpus found = {{0}, 0};
  found.bytes = sm_syscall(SM_sched_getaffinity, 0, sizeof found.mask, (long)found.mask, 0, 0, 0);
  return found;
}
static inline void sm_allow(const sm_cpus *cpus) { sm_syscall(SM_sched_setaffinity, 0, cpus->bytes, (long)cpus->mask, 0, 0, 0); }

/* Their number, at least 1. */
static inline int sm_cpu_count(void) {
  sm_cpus may = sm_allowed();
  int n = 0;
  for (long i = 0; i < may.bytes / (long)sizeof(long); i++) n += __builtin_popcountl(may.mask[i]);
  return n > 0 ? n : 1;
}

/* The processor that this thread is on; negative where the kernel does not say. */
static inline int sm_cpu(void) {
  unsigned cpu = 0;
  return sm_syscall(SM_getcpu, (long)&cpu, 0, 0, 0, 0, 0) ? -1 : (int)cpu;
}

/* Go from processor `cpu` to whatever other one this thread may run on, if any; it may come back. */
static inline void sm_leave(int cpu) {
  enum { BITS = 8 * sizeof(long) };
  sm_cpus may = sm_allowed(), other = may;
  if (cpu < 0 || cpu >= (int)(8 * sizeof may.mask)) return;
  other.mask[cpu / BITS] &= ~(1ul << cpu % BITS);
  unsigned long left = 0;
  for (long i = 0; i < may.bytes / (long)sizeof(long); i++) left |= other.mask[i];
  if (left) sm_allow(&other), sm_allow(&may);
}

typedef struct {
  long seconds, nanoseconds;
} sm_timespec; /* the kernel's timespec of a native word */

/* Sleep while *word == expected. Wakes early at times: callers loop. */
static inline void sm_futex_wait(const void *word, uint32_t expected) {
  sm_syscall(SM_futex, (long)word, 128 /* WAIT | PRIVATE */, (long)expected, 0, 0, 0);
}
/* The same for so many nanoseconds at most. */
static inline void sm_futex_wait_for(const void *word, uint32_t expected, uint64_t nanoseconds) {
  sm_timespec t = {(long)(nanoseconds / 1000000000u), (long)(nanoseconds % 1000000000u)};
  sm_syscall(SM_futex, (long)word, 128, (long)expected, (long)&t, 0, 0);
}
static inline void sm_futex_wake(const void *word, int count) {
  sm_syscall(SM_futex, (long)word, 129 /* WAKE | PRIVATE */, count, 0, 0, 0);
}

/* Nanoseconds of CLOCK_MONOTONIC. */
#if defined(__arm__)
/* libc's symbol is 32 or 64 bit by libc and version; the old call holds 68 years of uptime and every kernel has it. */
static inline uint64_t sm_now(void) {
  sm_timespec t = {0, 0};
  sm_syscall(SM_clock_gettime, 1, (long)&t, 0, 0, 0, 0);
  return (uint64_t)t.seconds * 1000000000u + (uint64_t)t.nanoseconds;
}
#else
int clock_gettime(int, sm_timespec *); /* libc's: it needs no kernel entry (vdso) */
static inline uint64_t sm_now(void) {
  sm_timespec t = {0, 0};
  clock_gettime(1, &t);
  return (uint64_t)t.seconds * 1000000000u + (uint64_t)t.nanoseconds;
}
#endif

/* Wakes early when a signal comes. */
static inline void sm_yield(void) { sm_syscall(SM_sched_yield, 0, 0, 0, 0, 0, 0); }
static inline void sm_sleep(long nanoseconds) {
  sm_timespec t = {0, nanoseconds};
  sm_syscall(SM_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

/* How a thread's floating-point unit computes: the control word in which nothing traps and results are rounded to nearest. flush:
 * subnormal operands and results are 0 (Intel SDM 10.2.3: DAZ and FTZ; Arm ARM: FPCR.FZ, FPSCR.FZ). RISC-V has no such mode. */
static inline uint64_t sm_floats(int flush) {
#if defined(__x86_64__)
  return 0x1f80u | (flush ? 0x8040u : 0);
#elif defined(__aarch64__) || defined(__arm__)
  return flush ? 1u << 24 : 0;
#else
  return (void)flush, 0;
#endif
}

/* This thread's control word becomes `to`; what it was. */
static inline uint64_t sm_swap_floats(uint64_t to) {
#if defined(__x86_64__)
  uint32_t was, word = (uint32_t)to;
  __asm__ volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(was) : "m"(word) : "memory");
#elif defined(__aarch64__)
  uint64_t was;
  __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, %1" : "=&r"(was) : "r"(to) : "memory");
#elif defined(__arm__) && defined(__ARM_FP)
  uint32_t was, word = (uint32_t)to;
  __asm__ volatile("vmrs %0, fpscr\n\tvmsr fpscr, %1" : "=&r"(was) : "r"(word) : "memory");
#elif defined(__riscv) && defined(__riscv_flen)
  unsigned long was, word = (unsigned long)to;
  __asm__ volatile("fscsr %0, %1" : "=&r"(was) : "r"(word) : "memory");
#else
  uint64_t was = to;
#endif
  return was;
}

/* Tell the core that this is a spin loop. */
static inline void sm_pause(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#else
  __asm__ volatile("" ::: "memory");
#endif
}
#endif
