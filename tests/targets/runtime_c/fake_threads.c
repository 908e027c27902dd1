/* fake_threads.c: threads of a group as contexts that take turns at barriers. */
#define _GNU_SOURCE
#include "fake_threads.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { MOST_THREADS = 1024, STACK = 160 * 1024 }; /* a thread may have 64 KiB of arrays */

typedef enum { READY, WAITING, DONE } fake_phase;
typedef struct {
  ucontext_t scheduler, context[MOST_THREADS];
  fake_phase phase[MOST_THREADS];
  char *stacks;
  uint32_t current;
  fake_kernel kernel;
  const int64_t *words;
} fake_group;

static fake_group *running; /* one at a time */

static void barrier(void) {
  fake_group *g = running;
  g->phase[g->current] = WAITING;
  swapcontext(&g->context[g->current], &g->scheduler);
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
