/* fake_threads.h: runs a kernel that was lowered for the host (tests/support/cuda_host.py) as a GPU would: group after group, each thread
 * of a group on a stack of its own up to the next barrier. */
#ifndef FAKE_THREADS_H
#define FAKE_THREADS_H
#include <stdint.h>

/* What the lowered code reads and calls. */
typedef struct {
  int32_t thread, group;
  void (*barrier)(void);
  void (*warp)(int32_t what, int64_t *words); /* what: product, matrices, waiting and copies, as in cuda_host.py */
} fake_state;

typedef void (*fake_kernel)(const int64_t *words);

/* order: 0 threads take their turns first to last, 1 last to first, so that what a barrier should part is seen in both ways. Returns 0, or
 * -1 when threads end while others wait at a barrier. */
int fake_run(fake_kernel kernel, fake_state *state, const int64_t *words, uint32_t groups, uint32_t threads, int order);
#endif
