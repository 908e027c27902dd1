/* leaving.c: a pool whose worker sleeps on the caller's processor; it goes to another one to work, and may come back. */
#define _GNU_SOURCE
#include <stdio.h>

#include "rt.h"

enum { ROUNDS = 8, CHUNK_NS = 2000000, REST_NS = 100000000 }; /* after 5 ms Linux 6.18 still wakes a worker elsewhere */

static int caller;
static _Atomic int worker, first; /* a thread's id; the processor of its first chunk in a region, -1: none yet */

static void work(const int64_t *args, int64_t lo, int64_t hi, int64_t place) {
  (void)args, (void)lo, (void)hi, (void)place;
  if (sm_gettid() != caller) {
    atomic_store(&worker, sm_gettid());
    int none = -1;
    atomic_compare_exchange_strong(&first, &none, sm_cpu());
  }
  for (uint64_t end = sm_now() + CHUNK_NS; sm_now() < end;) sm_pause();
}

static int same(sm_cpus a, sm_cpus b) {
  int equal = a.bytes == b.bytes;
  for (long i = 0; i < a.bytes / (long)sizeof(long); i++) equal &= a.mask[i] == b.mask[i];
  return equal;
}

static void allow(int thread, const sm_cpus *cpus) { sm_syscall(SM_sched_setaffinity, thread, cpus->bytes, (long)cpus->mask, 0, 0, 0); }

int main(void) {
  static rt_pool pool;
  sm_cpus may = sm_allowed();
  if (sm_cpu_count() < 2) return puts("one processor"), 0;
  caller = sm_gettid();
  rt_pool_init(&pool, 2, 1);
  for (int i = 0; i < 100 && !atomic_load(&worker); i++) rt_pool_run(&pool, work, NULL, 8, 1);

  int home = sm_cpu(), took = 0, away = 0;
  sm_cpus one = {.bytes = may.bytes};
  one.mask[home / (8 * sizeof(long))] = 1ul << home % (8 * sizeof(long));
  sm_allow(&one);
  sm_leave(home); /* there is no other */
  int failed = sm_cpu() != home || !same(sm_allowed(), one);
  for (int i = 0; i < ROUNDS && atomic_load(&worker); i++) {
    allow(atomic_load(&worker), &one);
    rt_pool_run(&pool, work, NULL, 8, 1);
    sm_sleep(REST_NS);
    allow(atomic_load(&worker), &may);
    atomic_store(&first, -1);
    rt_pool_run(&pool, work, NULL, 8, 1);
    took += atomic_load(&first) >= 0, away += atomic_load(&first) >= 0 && atomic_load(&first) != home;
  }
  sm_allow(&may);
  sm_leave(home);
  failed |= !same(sm_allowed(), may) || 2 * away < took;
  rt_pool_close(&pool);
  printf(failed ? "%d of %d away\n" : "OK\n", away, took);
  return failed;
}
