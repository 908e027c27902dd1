/* pool.c: a parallel region in, its groups run by the caller and the session's workers out.
 *
 * Work is claimed in chunks, the caller taking part, so a region ends even when no worker ever gets a processor: on a busy
 * two-core machine a static split stalled 4-8 ms whenever the scheduler had put the worker aside.
 *
 * Why no lock is needed: `unclaimed` counts down, and taking it from n to n-1 gives chunk n_chunks-n. It is published after the
 * region's fields, so whoever takes a chunk sees them; and the caller changes them only when `unfinished` is 0, which
 * cannot be before that chunk is done. A worker that wakes late finds either 0 or a newer region: both are right. */
#include "rt.h"

enum { SPIN_NS = 50000, CHUNKS_PER_THREAD = 4, STACK_BYTES = 4 << 20, PAUSES_PER_CLOCK = 32 };

static int claim(rt_pool *pool, uint32_t *chunk) {
  uint32_t left = atomic_load_explicit(&pool->unclaimed, memory_order_acquire);
  while (left) {
    if (atomic_compare_exchange_weak_explicit(&pool->unclaimed, &left, left - 1, memory_order_acq_rel, memory_order_acquire)) {
      *chunk = pool->n_chunks - left;
      return 1;
    }
  }
  return 0;
}

static void run_claimed(rt_pool *pool) {
  uint32_t chunk, region = 0, place = 0;
  while (claim(pool, &chunk)) {
    /* a thread that claims has a place of its own until the region ends: there are no more of them than threads or chunks */
    if (region != pool->region) region = pool->region, place = atomic_fetch_add_explicit(&pool->places, 1, memory_order_relaxed);
    int64_t lo = (int64_t)chunk * pool->chunk, hi = lo + pool->chunk;
    pool->fn(pool->args, lo, hi < pool->groups ? hi : pool->groups, place);
    if (atomic_fetch_sub(&pool->unfinished, 1) == 1 && atomic_load(&pool->caller_sleeps)) sm_futex_wake(&pool->unfinished, 1);
  }
}

/* Wait a little for (*word != 0) to become `wanted`; 1 when it did. */
static int spin_until(const rt_pool *pool, const _Atomic uint32_t *word, int wanted) {
  uint64_t end = 0;
  for (;;) {
    for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
      if ((atomic_load_explicit(word, memory_order_acquire) != 0) == wanted) return 1;
      sm_pause();
    }
    uint64_t now = sm_now();
    if (!end) end = now + pool->spin_ns;
    if (now >= end) return 0;
  }
}

/* A kernel may wake a worker that has slept for long on the caller's processor while another is idle, and part them 10 ms and more
 * later (Linux 6.18, a virtual machine of two processors, a rest of 100 ms: two threads took as long as one, or longer). */
static void leave_the_caller(const rt_pool *pool) {
  int here = sm_cpu();
  if (here >= 0 && here == atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed)) sm_leave(here);
}

static void sleep_until_work(rt_pool *pool) {
  atomic_fetch_add(&pool->sleepers, 1);
  for (;;) {
    /* the launcher stores `unclaimed`, then reads `sleepers`; we do the reverse, so one of us sees the other */
    uint32_t seen = atomic_load(&pool->wake);
    if (atomic_load(&pool->unclaimed) || atomic_load(&pool->quit)) break;
    sm_futex_wait(&pool->wake, seen);
  }
  atomic_fetch_sub(&pool->sleepers, 1);
  leave_the_caller(pool);
}

static void *worker(void *pool_) {
  rt_pool *pool = pool_;
  sm_swap_floats(pool->floats);
  while (!atomic_load(&pool->quit)) {
    run_claimed(pool);
    if (!spin_until(pool, &pool->unclaimed, 1)) sleep_until_work(pool);
  }
  return NULL;
}

/* Workers take no signal of the host program, but faults stay theirs so that a crash handler sees them. */
static uint64_t block_signals(void) {
  const int faults[] = {4 /* ILL */, 5 /* TRAP */, 6 /* ABRT */, 7 /* BUS */, 8 /* FPE */, 11 /* SEGV */, 27 /* PROF */, 31 /* SYS */};
  uint64_t all = ~(uint64_t)0, before = 0;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) all &= ~((uint64_t)1 << (faults[i] - 1));
  sm_syscall(SM_rt_sigprocmask, 2 /* SIG_SETMASK */, (long)&all, (long)&before, sizeof all, 0, 0);
  return before;
}
static void restore_signals(uint64_t mask) { sm_syscall(SM_rt_sigprocmask, 2, (long)&mask, 0, sizeof mask, 0, 0); }

int rt_thread(sm_thread *to, void *(*fn)(void *), void *context) {
  sm_thread_attr attr;
  if (pthread_attr_init(&attr)) return 0;
  pthread_attr_setstacksize(&attr, STACK_BYTES); /* musl's default is 128 KiB */
  uint64_t mask = block_signals();
  int failed = pthread_create(to, &attr, fn, context);
  restore_signals(mask);
  pthread_attr_destroy(&attr);
  return !failed;
}

/* As many workers as the system gives; none is no failure. */
static void start(rt_pool *pool) {
  pool->tried = 1;
  pool->pid = sm_getpid();
  while (pool->started < pool->threads - 1 && rt_thread(&pool->workers[pool->started], worker, pool)) pool->started++;
}

void rt_pool_start(rt_pool *pool) {
  if (pool->threads > 1 && !pool->tried) start(pool);
}

void rt_pool_init(rt_pool *pool, int32_t threads, int keep_subnormals) {
  int cpus = sm_cpu_count();
  if (threads <= 0) threads = cpus;
  pool->threads = threads < SMELT_MAX_THREADS ? threads : SMELT_MAX_THREADS;
  pool->floats = sm_floats(!keep_subnormals);
  pool->spin_ns = pool->threads <= cpus ? SPIN_NS : 0; /* more threads than processors: a spin only keeps the owner of the work out */
}

void rt_pool_run(rt_pool *pool, smelt_kernel_fn fn, const int64_t *args, int64_t groups, int32_t grain) {
  if (grain < 1) grain = 1;
  int64_t parts = (int64_t)pool->threads * CHUNKS_PER_THREAD;
  int64_t chunk = groups / parts + (groups % parts != 0);
  if (chunk < grain) chunk = grain;
  int64_t n_chunks = groups / chunk + (groups % chunk != 0);
  if (n_chunks > 1) rt_pool_start(pool);
  if (pool->started == 0 || n_chunks <= 1) {
    fn(args, 0, groups, 0);
    return;
  }
  pool->fn = fn, pool->args = args, pool->groups = groups, pool->chunk = chunk, pool->n_chunks = (uint32_t)n_chunks;
  if (!++pool->region) pool->region = 1;
  atomic_store_explicit(&pool->places, 0, memory_order_relaxed);
  atomic_store(&pool->unfinished, (uint32_t)n_chunks);
  atomic_store(&pool->unclaimed, (uint32_t)n_chunks);
  if (atomic_load(&pool->sleepers)) {
    atomic_store_explicit(&pool->caller_cpu, sm_cpu(), memory_order_relaxed);
    atomic_fetch_add(&pool->wake, 1);
    sm_futex_wake(&pool->wake, (int)n_chunks - 1);
  }
  run_claimed(pool);
  if (spin_until(pool, &pool->unfinished, 0)) return;
  atomic_store(&pool->caller_sleeps, 1);
  for (uint32_t left; (left = atomic_load(&pool->unfinished)) != 0;) sm_futex_wait(&pool->unfinished, left);
  atomic_store(&pool->caller_sleeps, 0);
}

void rt_pool_after_fork(rt_pool *pool) {
  if (!pool->started || pool->pid == sm_getpid()) return;
  pool->started = pool->tried = 0;
  atomic_store(&pool->sleepers, 0);
  atomic_store(&pool->unclaimed, 0);
}

void rt_pool_close(rt_pool *pool) {
  rt_pool_after_fork(pool);
  atomic_store(&pool->quit, 1);
  atomic_fetch_add(&pool->wake, 1);
  if (pool->started) sm_futex_wake(&pool->wake, SMELT_MAX_THREADS);
  for (int32_t i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
  pool->started = 0;
}
