/* runner_sys.h: the Linux system calls that the runner needs, without libc headers; each returns -errno on failure.
 *
 * Raw calls keep the runner the same program on glibc, musl, bionic and with no libc at all: only fork, dlopen, dlsym,
 * dlerror and the mem/str functions declared below come from outside. Structs are the kernel's own. */
#ifndef RUNNER_SYS_H
#define RUNNER_SYS_H
#include <stddef.h>
#include <stdint.h>

int fork(void); /* libc's, not a raw clone: it keeps the thread state right for the pool that the model starts later */
void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *at, int value, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);
int strcmp(const char *a, const char *b);
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *name);
char *dlerror(void);
#if defined(__ANDROID__) && !defined(__LP64__)
#define RUNNER_RTLD_NOW 0 /* 32-bit bionic numbers the flags in its own way: there 2 is RTLD_GLOBAL */
#else
#define RUNNER_RTLD_NOW 2
#endif

#if defined(__x86_64__)
#define RUNNER_ARCH "x86_64"
enum { NR_read = 0, NR_write = 1, NR_close = 3, NR_lseek = 8, NR_mmap = 9, NR_munmap = 11, NR_rt_sigaction = 13, NR_getpid = 39,
       NR_wait4 = 61, NR_kill = 62, NR_uname = 63, NR_fcntl = 72, NR_getrusage = 98, NR_setpgid = 109, NR_getppid = 110,
       NR_sigaltstack = 131, NR_prctl = 157, NR_sched_getaffinity = 204, NR_clock_gettime = 228, NR_exit_group = 231,
       NR_openat = 257, NR_ppoll = 271, NR_dup3 = 292, NR_pipe2 = 293, NR_prlimit64 = 302, NR_readlinkat = 267,
       NR_getdents64 = 217, NR_pread64 = 17, NR_pwrite64 = 18, NR_fsync = 74, NR_getcpu = 309,
       NR_flock = 73, NR_sched_setaffinity = 203, NR_unlinkat = 263, NR_gettid = 186 };
#elif defined(__aarch64__) || defined(__riscv)
#ifdef __riscv
#define RUNNER_ARCH "riscv64"
#else
#define RUNNER_ARCH "aarch64"
#endif
enum { NR_dup3 = 24, NR_fcntl = 25, NR_openat = 56, NR_close = 57, NR_pipe2 = 59, NR_getdents64 = 61, NR_lseek = 62, NR_read = 63, NR_write = 64,
       NR_pwrite64 = 68, NR_fsync = 82, NR_ppoll = 73, NR_readlinkat = 78, NR_exit_group = 94, NR_clock_gettime = 113, NR_sched_getaffinity = 123,
       NR_kill = 129, NR_sigaltstack = 132, NR_rt_sigaction = 134, NR_setpgid = 154, NR_uname = 160,
       NR_getrusage = 165, NR_prctl = 167, NR_getpid = 172, NR_getppid = 173, NR_munmap = 215, NR_mmap = 222,
       NR_wait4 = 260, NR_prlimit64 = 261, NR_pread64 = 67, NR_getcpu = 168,
       NR_flock = 32, NR_unlinkat = 35, NR_sched_setaffinity = 122, NR_gettid = 178 };
#elif defined(__arm__)
#define RUNNER_ARCH "armv7"
enum { NR_read = 3, NR_write = 4, NR_close = 6, NR_lseek = 19, NR_getpid = 20, NR_kill = 37, NR_setpgid = 57, NR_getppid = 64,
       NR_getrusage = 77, NR_munmap = 91, NR_wait4 = 114, NR_uname = 122, NR_prctl = 172, NR_rt_sigaction = 174,
       NR_sigaltstack = 186, NR_mmap = 192 /* mmap2 */, NR_getdents64 = 217, NR_fcntl = 221 /* fcntl64 */, NR_sched_getaffinity = 242,
       NR_exit_group = 248, NR_clock_gettime = 263, NR_openat = 322, NR_readlinkat = 332, NR_ppoll = 336,
       NR_dup3 = 358, NR_pipe2 = 359, NR_prlimit64 = 369, NR_pread64 = 180, NR_pwrite64 = 181, NR_fsync = 118, NR_getcpu = 345,
       NR_flock = 143, NR_sched_setaffinity = 241, NR_unlinkat = 328, NR_gettid = 224 };
#else
#error "runner_sys.h has no system call numbers for this architecture; add a row"
#endif

static inline long sys(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#elif defined(__riscv)
  register long a7 __asm__("a7") = number;
  register long a0 __asm__("a0") = a;
  register long a1 __asm__("a1") = b;
  register long a2 __asm__("a2") = c;
  register long a3 __asm__("a3") = d;
  register long a4 __asm__("a4") = e;
  register long a5 __asm__("a5") = f;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
  return a0;
#else
  register long r0 __asm__("r0") = a;
  register long r1 __asm__("r1") = b;
  register long r2 __asm__("r2") = c;
  register long r3 __asm__("r3") = d;
  register long r4 __asm__("r4") = e;
  register long r5 __asm__("r5") = f;
  /* r7 may be the frame pointer (Thumb), so it is saved by hand instead of being named as a register */
  __asm__ volatile("push {r7}\n\tmov r7, %[n]\n\tsvc 0\n\tpop {r7}"
                   : "+r"(r0) : [n] "r"(number), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
  return r0;
#endif
}

enum { SYS_EINTR = 4, SYS_EPIPE = 32, SYS_EAGAIN = 11, SYS_ENOENT = 2, SYS_AT_FDCWD = -100 };
enum { SYS_O_RDONLY = 0, SYS_O_WRONLY = 1, SYS_O_RDWR = 2, SYS_O_NONBLOCK = 04000, SYS_O_CLOEXEC = 02000000 };
enum { SYS_POLLIN = 1, SYS_POLLOUT = 4, SYS_POLLERR = 8, SYS_POLLHUP = 16, SYS_POLLNVAL = 32 };
enum { SYS_SIGILL = 4, SYS_SIGABRT = 6, SYS_SIGBUS = 7, SYS_SIGFPE = 8, SYS_SIGKILL = 9, SYS_SIGSEGV = 11, SYS_SIGPIPE = 13,
       SYS_SIGCHLD = 17 };
enum { SYS_RLIMIT_CORE = 4, SYS_RLIMIT_AS = 9, SYS_WNOHANG = 1, SYS_CLOCK_PROCESS = 2, SYS_CLOCK_RAW = 4 };

typedef struct { int fd; short events, revents; } sys_pollfd;
typedef struct { long seconds, nanoseconds; } sys_timespec;
typedef struct { char system[65], node[65], release[65], version[65], machine[65], domain[65]; } sys_utsname;

static inline long sys_read(int fd, void *to, size_t n) { return sys(NR_read, fd, (long)to, (long)n, 0, 0, 0); }
static inline long sys_write(int fd, const void *from, size_t n) { return sys(NR_write, fd, (long)from, (long)n, 0, 0, 0); }
static inline void sys_close(int fd) { sys(NR_close, fd, 0, 0, 0, 0, 0); }
static inline int sys_open(const char *path, int flags) {
  return (int)sys(NR_openat, SYS_AT_FDCWD, (long)path, flags | SYS_O_CLOEXEC, 0, 0, 0);
}
static inline void sys_seek_end(int fd) { sys(NR_lseek, fd, 0, 2, 0, 0, 0); }
static inline int sys_pipe(int ends[2]) { return (int)sys(NR_pipe2, (long)ends, SYS_O_CLOEXEC, 0, 0, 0, 0); }
static inline int sys_dup_to(int from, int to) { return (int)sys(NR_dup3, from, to, 0, 0, 0, 0); }
static inline void sys_nonblocking(int fd) {
  long flags = sys(NR_fcntl, fd, 3, 0, 0, 0, 0);
  if (flags >= 0) sys(NR_fcntl, fd, 4, flags | SYS_O_NONBLOCK, 0, 0, 0);
}
static inline void sys_widen(int fd) { sys(NR_fcntl, fd, 1031 /* F_SETPIPE_SZ */, 1 << 20, 0, 0, 0); } /* refused: no harm */
static inline int sys_poll(sys_pollfd *fds, size_t n, int64_t wait_ns) {
  sys_timespec wait = {(long)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
  return (int)sys(NR_ppoll, (long)fds, (long)n, wait_ns < 0 ? 0 : (long)&wait, 0, 8, 0);
}
static inline int sys_wait(int pid, int *status, int flags) { return (int)sys(NR_wait4, pid, (long)status, flags, 0, 0, 0); }
static inline void sys_kill(int pid, int number) { sys(NR_kill, pid, number, 0, 0, 0, 0); }
static inline int sys_getpid(void) { return (int)sys(NR_getpid, 0, 0, 0, 0, 0, 0); }
static inline int sys_getppid(void) { return (int)sys(NR_getppid, 0, 0, 0, 0, 0, 0); }
static inline void sys_setpgid(int pid, int group) { sys(NR_setpgid, pid, group, 0, 0, 0, 0); }
static inline void sys_prctl(int what, long value) { sys(NR_prctl, what, value, 0, 0, 0, 0); }
static inline void sys_limit(int what, uint64_t limit) {
  uint64_t both[2] = {limit, limit};
  sys(NR_prlimit64, 0, what, (long)both, 0, 0, 0);
}
__attribute__((noreturn)) static inline void sys_exit(int code) {
  for (;;) sys(NR_exit_group, code, 0, 0, 0, 0, 0);
}
static inline uint64_t sys_clock(int which) { /* ns */
  sys_timespec t = {0, 0};
  sys(NR_clock_gettime, which, (long)&t, 0, 0, 0, 0);
  return (uint64_t)t.seconds * 1000000000u + (uint64_t)t.nanoseconds;
}
static inline uint64_t sys_now(void) { return sys_clock(SYS_CLOCK_RAW); } /* monotonic and never slewed by NTP */

/* ---- memory ---- */
/* sys_border: of `all` bytes only the first `used` may be touched from now on. It has an effect in sanitized builds alone, which
 * know nothing of memory that a raw call has mapped; they have a border after each piece of it. */
#ifdef __SANITIZE_ADDRESS__
enum { SYS_BORDER = 4096 };
void __asan_poison_memory_region(const volatile void *at, size_t bytes);
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
static inline void sys_border(void *at, size_t used, size_t all) {
  __asan_unpoison_memory_region(at, used);
  __asan_poison_memory_region((char *)at + used, all - used);
}
#else
enum { SYS_BORDER = 0 };
static inline void sys_border(void *at, size_t used, size_t all) { (void)at, (void)used, (void)all; }
#endif
static inline void *sys_map(size_t bytes) { /* zeroed private memory, NULL when there is none */
  if (bytes + SYS_BORDER < bytes) return NULL;
  long at = sys(NR_mmap, 0, (long)(bytes + SYS_BORDER), 3, 0x22, -1, 0);
  if (at < 0 && at > -4096) return NULL;
  sys_border((void *)at, bytes, bytes + SYS_BORDER);
  return (void *)at;
}
static inline void sys_unmap(void *at, size_t bytes) {
  sys_border(at, bytes + SYS_BORDER, bytes + SYS_BORDER);
  sys(NR_munmap, (long)at, (long)(bytes + SYS_BORDER), 0, 0, 0, 0);
}

/* ---- fatal signals of the model ---- */
typedef struct {
  void (*handler)(int, void *, void *);
  unsigned long flags;
#ifndef __riscv
  void (*restorer)(void);
#endif
  uint64_t mask;
} sys_action;

#if defined(__x86_64__)
__attribute__((naked, unused)) static void sys_signal_return(void) { __asm__("mov $15, %eax\n\tsyscall"); }
#endif

static inline void sys_on_signal(int number, void (*handler)(int, void *, void *), unsigned long flags) {
  sys_action action;
  memset(&action, 0, sizeof action);
  action.handler = handler;
  action.flags = flags;
#if defined(__x86_64__) /* the one architecture whose kernel has no return stub of its own */
  action.flags |= 0x04000000;
  action.restorer = sys_signal_return;
#endif
  sys(NR_rt_sigaction, number, (long)&action, 0, 8, 0, 0);
}

/* Where the interrupted code was: offsets in the kernel's ucontext of the saved pc, the stack pointer, and the register that has the
 * return address (0: there is none). */
#if defined(__x86_64__)
enum { SYS_UCONTEXT_PC = 40 + 16 * 8, SYS_UCONTEXT_SP = 40 + 15 * 8, SYS_UCONTEXT_LR = 0 }; /* uc_mcontext.gregs: REG_RIP, REG_RSP */
#elif defined(__aarch64__)
enum { SYS_UCONTEXT_PC = 176 + 8 + 31 * 8 + 8, SYS_UCONTEXT_SP = 176 + 8 + 31 * 8, SYS_UCONTEXT_LR = 176 + 8 + 30 * 8 };
#elif defined(__riscv)
enum { SYS_UCONTEXT_PC = 176, SYS_UCONTEXT_SP = 176 + 2 * 8, SYS_UCONTEXT_LR = 176 + 8 };
#else
enum { SYS_UCONTEXT_PC = 20 + 3 * 4 + 15 * 4, SYS_UCONTEXT_SP = 20 + 3 * 4 + 13 * 4, SYS_UCONTEXT_LR = 20 + 3 * 4 + 14 * 4 };
#endif
#endif
