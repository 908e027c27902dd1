/* Runs kernels of a linked table on data from stdin, without a libc: the test's side of emulated processors.
 * stdin:  for each run, int64 kernel, buffers, dims, entries; the size of each buffer in bytes; each dim; the
 *         groups of each entry; then the bytes of every buffer, padded to 64.
 * stdout: of each run, the bytes of every buffer, padded to 64. */
#include <stddef.h>
#include <stdint.h>

typedef void (*kernel_fn)(const int64_t *args, int64_t lo, int64_t hi, int64_t place);
extern const kernel_fn *const kernel_table[];

static long system_call(long n, long a, long b, long c) {
#if defined(__aarch64__)
  register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#elif defined(__arm__)
  register long r7 __asm__("r7") = n, r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
  return r0;
#elif defined(__riscv)
  register long a7 __asm__("a7") = n, a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
  return a0;
#endif
}

#if defined(__arm__)
enum { READ = 3, WRITE = 4, EXIT = 1 };
#else
enum { READ = 63, WRITE = 64, EXIT = 93 };
#endif

static unsigned char arena[1 << 22] __attribute__((aligned(64)));

static void transfer(long call, int file, void *at, size_t bytes) {
  unsigned char *p = at;
  while (bytes) {
    long n = system_call(call, file, (long)p, (long)bytes);
    if (n <= 0) system_call(EXIT, call == READ && p == at && n == 0 ? 0 : 2, 0, 0); /* after the last run */
    p += n;
    bytes -= (size_t)n;
  }
}

void *memset(void *to, int value, size_t n) {
  volatile unsigned char *p = to;
  while (n--) *p++ = (unsigned char)value;
  return to;
}

void *memcpy(void *to, const void *from, size_t n) {
  volatile unsigned char *p = to;
  const unsigned char *q = from;
  while (n--) *p++ = *q++;
  return to;
}

static void one(void) {
  int64_t head[4], words[64], args[64];
  transfer(READ, 0, head, sizeof head);
  int64_t count = head[1] + head[2] + head[3];
  transfer(READ, 0, words, (size_t)count * 8);
  size_t used = 0;
  for (int64_t i = 0; i < head[1]; i++) {
    args[i] = (int64_t)(intptr_t)(arena + used);
    used += (size_t)((words[i] + 63) & ~(int64_t)63);
  }
  if (used > sizeof arena) system_call(EXIT, 3, 0, 0);
  for (int64_t i = 0; i < head[2]; i++) args[head[1] + i] = words[head[1] + i];
  transfer(READ, 0, arena, used);
  for (int64_t i = 0; i < head[3]; i++) {
    int64_t groups = words[head[1] + head[2] + i];
    if (groups) kernel_table[head[0]][i](args, 0, groups, 0);
  }
  transfer(WRITE, 1, arena, used);
}

__attribute__((used)) void run(void) {
  for (;;) one();
}

#if defined(__aarch64__)
__asm__(".globl _start\n_start:\n  mov x29, #0\n  bl run\n");
#elif defined(__arm__)
__asm__(".globl _start\n_start:\n  bic sp, sp, #63\n  bl run\n");
#elif defined(__riscv)
__asm__(".globl _start\n_start:\n  andi sp, sp, -64\n  call run\n");
#endif
