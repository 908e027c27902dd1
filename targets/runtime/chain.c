/* chain.c: commands for a unit in; the same with neighbours that are parts of one chain as one command, out. */
#include "unit.h"

/* What a chain is launched with, as far as its parts have told. next: the one before it. */
typedef struct chained {
  struct chained *next;
  smelt_place *places;
  int64_t dims[];
} chained;

enum { UNTOLD = -1 }; /* offsets and sizes are none below 0 */

static chained *begin(const smelt_kernel_desc *chain) {
  size_t dims = (size_t)chain->n_dims * sizeof(int64_t);
  chained *c = malloc(sizeof *c + dims + (size_t)chain->n_buffers * sizeof *c->places);
  if (!c) return NULL;
  c->places = (smelt_place *)(c->dims + chain->n_dims);
  for (int32_t i = 0; i < chain->n_dims; i++) c->dims[i] = UNTOLD;
  memset(c->places, 0, (size_t)chain->n_buffers * sizeof *c->places);
  return c;
}

/* Where a chain has this command, behind its dim `after`; NULL: nowhere, or it does too much. */
static const smelt_chain_part *part_of(const smelt_model_desc *m, const smelt_command *c, int32_t share, int32_t chain, int32_t after) {
  const smelt_kernel_desc *desc = c->kernel < 0 ? NULL : &m->kernels[c->kernel];
  for (int32_t i = 0; desc && c->groups <= 1 + (desc->chain_groups - 1) * share / 8 && i < desc->n_chains; i++)
    if (desc->chains[i].kernel == chain && desc->chains[i].dim > after) return &desc->chains[i];
  return NULL;
}

static int told(int64_t *at, int64_t value) { return (*at == UNTOLD ? (*at = value) : *at) == value; }

/* The part's parameters; 0: parts before it have given others for what the chain takes for one. */
static int take_part(const smelt_kernel_desc *desc, const smelt_command *c, const smelt_chain_part *part, chained *made) {
  const int32_t *at = part->at;
  int fits = told(&made->dims[part->dim], 1);
  for (int32_t i = 0; i < desc->n_buffers && fits; i++, at += 2) {
    smelt_place *place = &made->places[at[0]];
    if (!place->memory) place->memory = c->buffers[i].memory;
    fits = place->memory == c->buffers[i].memory && told(&made->dims[at[1]], (int64_t)c->buffers[i].offset);
  }
  for (int32_t i = 0; i < desc->n_dims && fits; i++) fits = told(&made->dims[*at++], c->dims[i]);
  if (!fits) made->dims[part->dim] = 0;
  return fits;
}

/* How many commands from the first one on are parts of this chain, in its order. */
static uint32_t run_of(const smelt_model_desc *m, const smelt_command *all, uint32_t n, int32_t share, int32_t chain, chained *made) {
  int32_t after = -1;
  uint32_t run = 0;
  for (const smelt_chain_part *p; run < n && (p = part_of(m, &all[run], share, chain, after)); run++) {
    if (!take_part(&m->kernels[all[run].kernel], &all[run], p, made)) break;
    after = p->dim;
  }
  return run;
}

/* As a command; what takes no part gets memory that is there, and sizes of 0. */
static smelt_command command_of(const smelt_kernel_desc *chain, int32_t id, chained *c, void *memory) {
  for (int32_t i = 0; i < chain->n_dims; i++) c->dims[i] = c->dims[i] == UNTOLD ? 0 : c->dims[i];
  for (int32_t i = 0; i < chain->n_buffers; i++) c->places[i].memory = c->places[i].memory ? c->places[i].memory : memory;
  return (smelt_command){.kernel = id, .groups = 1, .buffers = c->places, .dims = c->dims};
}

uint32_t rt_chain(const smelt_model_desc *m, smelt_command *all, uint32_t n, int32_t share, void **memory) {
  uint32_t left = 0;
  *memory = NULL;
  for (uint32_t i = 0, run; i < n; i += run) {
    const smelt_kernel_desc *desc = all[i].kernel < 0 ? NULL : &m->kernels[all[i].kernel];
    chained *best = NULL;
    int32_t id = -1;
    run = 1;
    for (int32_t k = 0; desc && k < desc->n_chains; k++) {
      int32_t chain = desc->chains[k].kernel;
      chained *made = k && chain == desc->chains[k - 1].kernel ? NULL : begin(&m->kernels[chain]);
      uint32_t its = made ? run_of(m, all + i, n - i, share, chain, made) : 0;
      if (its > run) {
        free(best);
        best = made, run = its, id = chain;
      } else free(made);
    }
    if (best) best->next = *memory, *memory = best;
    all[left++] = best ? command_of(&m->kernels[id], id, best, all[i].buffers[0].memory) : all[i];
  }
  return left;
}

void rt_chain_free(void *memory) {
  for (chained *c = memory, *next; c; c = next) {
    next = c->next;
    free(c);
  }
}
