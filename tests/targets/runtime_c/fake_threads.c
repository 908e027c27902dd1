/* fake_threads.c: threads of a group as contexts that take turns at barriers. What a warp does together is done at two barriers of the
 * group; what is copied asynchronously arrives when its thread waits for it, no sooner. */
#define _GNU_SOURCE
#include "fake_threads.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { MOST_THREADS = 1024, WARP = 32, MOST_COPIES = 256, STACK = 160 * 1024 }; /* a thread may have 64 KiB of arrays */

typedef enum { READY, WAITING, DONE } fake_phase;
typedef struct {
  char *to;
  char bytes[16];
  uint32_t size, group;
} fake_copy;
typedef struct {
  ucontext_t scheduler, context[MOST_THREADS];
  fake_phase phase[MOST_THREADS];
  char *stacks;
  uint32_t current;
  fake_kernel kernel;
  const int64_t *words;
  const int64_t *given[MOST_THREADS]; /* what each thread brings to what its warp does */
  fake_copy copies[MOST_THREADS][MOST_COPIES];
  uint32_t n_copies[MOST_THREADS], n_groups[MOST_THREADS];
} fake_group;

static fake_group *running; /* one at a time */

static void barrier(void) {
  fake_group *g = running;
  g->phase[g->current] = WAITING;
  swapcontext(&g->context[g->current], &g->scheduler);
}

/* ---- what a warp does together ---- */
enum { PRODUCT, PRODUCT_BF16, MATRICES, TRANSPOSED, WAIT_MOST, WAIT, COMMIT };

static float half_of(const void *at, int bf16) {
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  if (bf16) {
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return f;
  }
  _Float16 h;
  memcpy(&h, &bits, sizeof h);
  return (float)h;
}

/* Element n of the two in register r of lane l. */
static float element(const int64_t *const *lanes, int l, int r, int n, int bf16) {
  return half_of((const char *)&lanes[l][r] + 2 * n, bf16);
}

/* d[16, 8] = a[16, 16] * b[16, 8] + c: what lane `me` has of it, PTX ISA, "Matrix Fragments for mma.m16n8k16". */
static void product(const int64_t *const *lanes, int me, int bf16, float *d) {
  for (int q = 0; q < 4; q++) {
    const int row = me / 4 + 8 * (q / 2), column = 2 * (me % 4) + q % 2;
    float sum;
    memcpy(&sum, &lanes[me][6 + q], sizeof sum);
    for (int k = 0; k < 16; k++) {
      const int r = (row / 8) + 2 * (k / 8);
      sum += element(lanes, 4 * (row % 8) + k % 8 / 2, r, k % 2, bf16) * element(lanes, 4 * column + k % 8 / 2, 4 + k / 8, k % 2, bf16);
    }
    d[q] = sum;
  }
}

/* Register q: two neighbours of row me / 4 of matrix q, whose rows begin where lanes 8q .. 8q + 7 say. */
static void matrices(const int64_t *const *lanes, int me, int transposed, uint32_t *d) {
  for (int q = 0; q < 4; q++) {
    uint16_t pair[2];
    for (int n = 0; n < 2; n++) {
      const int i = me / 4, j = 2 * (me % 4) + n;
      const char *row = (const char *)(intptr_t)lanes[8 * q + (transposed ? j : i)][0];
      memcpy(&pair[n], row + 2 * (transposed ? i : j), sizeof pair[n]);
    }
    memcpy(&d[q], pair, sizeof pair);
  }
}

static void warp(int32_t what, int64_t *words) {
  fake_group *g = running;
  const uint32_t me = g->current;
  if (what == WAIT_MOST || what == WAIT) {
    const uint32_t coming = what == WAIT ? 0 : (uint32_t)words[0], last = g->n_groups[me] + (what == WAIT);
    uint32_t left = 0;
    for (uint32_t i = 0; i < g->n_copies[me]; i++) {
      fake_copy *c = &g->copies[me][i];
      if (c->group + coming < last)
        memcpy(c->to, c->bytes, c->size);
      else
        g->copies[me][left++] = *c;
    }
    g->n_copies[me] = left;
    return;
  }
  if (what == COMMIT) {
    g->n_groups[me]++;
    return;
  }
  if (what > COMMIT) {
    if (g->n_copies[me] == MOST_COPIES) abort();
    fake_copy *c = &g->copies[me][g->n_copies[me]++];
    memset(c, 0, sizeof *c);
    c->to = (char *)(intptr_t)words[0];
    c->size = (uint32_t)(what - COMMIT);
    c->group = g->n_groups[me];
    if ((uintptr_t)c->to % c->size || (uintptr_t)words[1] % c->size) abort(); /* a device would stop, too */
    memcpy(c->bytes, (const char *)(intptr_t)words[1], (size_t)(uint32_t)words[2]);
    return;
  }
  uint32_t d[4];
  g->given[me] = words;
  barrier();
  const int64_t *const *lanes = &g->given[me / WARP * WARP];
  if (what == MATRICES || what == TRANSPOSED)
    matrices(lanes, (int)(me % WARP), what == TRANSPOSED, d);
  else
    product(lanes, (int)(me % WARP), what == PRODUCT_BF16, (float *)d);
  barrier();
  memcpy(words, d, sizeof d);
}

static void thread_main(void) {
  fake_group *g = running;
  g->kernel(g->words);
  g->phase[g->current] = DONE;
  swapcontext(&g->context[g->current], &g->scheduler);
}

/* One group, from barrier to barrier. */
static int run_group(fake_group *g, fake_state *state, uint32_t threads, int order) {
  for (uint32_t i = 0; i < threads; i++) {
    getcontext(&g->context[i]);
    g->context[i].uc_stack.ss_sp = g->stacks + (size_t)i * STACK;
    g->context[i].uc_stack.ss_size = STACK;
    g->context[i].uc_link = NULL;
    makecontext(&g->context[i], thread_main, 0);
    g->phase[i] = READY;
  }
  for (;;) {
    uint32_t done = 0;
    for (uint32_t n = 0; n < threads; n++) {
      uint32_t i = order ? threads - 1 - n : n;
      g->current = i;
      state->thread = (int32_t)i;
      g->phase[i] = READY;
      swapcontext(&g->scheduler, &g->context[i]);
      done += g->phase[i] == DONE;
    }
    if (done) return done == threads ? 0 : -1;
  }
}

int fake_run(fake_kernel kernel, fake_state *state, const int64_t *words, uint32_t groups, uint32_t threads, int order) {
  if (!threads || threads > MOST_THREADS) return -1;
  fake_group *g = calloc(1, sizeof *g);
  int status = g ? 0 : -1;
  if (g) g->stacks = malloc((size_t)threads * STACK);
  if (!g || !g->stacks) status = -1;
  if (!status) {
    g->kernel = kernel;
    g->words = words;
    running = g;
    state->barrier = barrier;
    state->warp = warp;
    for (uint32_t group = 0; group < groups && !status; group++) {
      state->group = (int32_t)group;
      status = run_group(g, state, threads, order);
    }
    running = NULL;
  }
  if (g) free(g->stacks);
  free(g);
  return status;
}
