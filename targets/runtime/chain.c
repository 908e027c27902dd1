/* chain.c: commands for a unit in; the same with neighbours that are parts of one chain as one command, out. */
#include "unit.h"

/* Where a chain has this command, behind its dim `after`; NULL: nowhere, or it does too much. */
static const smelt_chain_part *part_of(const smelt_model_desc *m, const smelt_command *c, int32_t chain, int32_t after) {
  const smelt_kernel_desc *desc = c->kernel < 0 ? NULL : &m->kernels[c->kernel];
  for (int32_t i = 0; desc && c->groups <= desc->chain_groups && i < desc->n_chains; i++)
    if (desc->chains[i].kernel == chain && desc->chains[i].dim > after) return &desc->chains[i];
  return NULL;
}

/* How many commands from the first one on are parts of one chain, in its order: of the one that has most of them. */
static uint32_t run_of(const smelt_model_desc *m, const smelt_command *all, uint32_t n, int32_t *chain) {
  uint32_t most = 1;
  for (int32_t i = 0; all[0].kernel >= 0 && i < m->kernels[all[0].kernel].n_chains; i++) {
    int32_t id = m->kernels[all[0].kernel].chains[i].kernel, dim = -1;
    uint32_t run = 0;
    for (const smelt_chain_part *p; run < n && (p = part_of(m, &all[run], id, dim)); run++) dim = p->dim;
    if (run > most) most = run, *chain = id;
  }
  return most;
}

/* The parameters of a chain: what takes no part gets memory that is there, and sizes of 0. Returns the part's dim. */
static int32_t take_part(const smelt_model_desc *m, const smelt_command *c, int32_t chain, int32_t after, smelt_place *places, int64_t *dims) {
  const smelt_kernel_desc *desc = &m->kernels[c->kernel];
  const smelt_chain_part *at = part_of(m, c, chain, after);
  memcpy(places + at->read, c->buffers, (size_t)desc->n_read * sizeof *places);
  memcpy(places + at->written, c->buffers + desc->n_read, (size_t)(desc->n_buffers - desc->n_read) * sizeof *places);
  dims[at->dim] = 1;
  memcpy(dims + at->dim + 1, c->dims, (size_t)desc->n_dims * sizeof *dims);
  return at->dim;
}

uint32_t rt_chain(const smelt_model_desc *m, smelt_command *all, uint32_t n, void **memory) {
  size_t places = 0, dims = 0;
  int32_t id = 0;
  for (uint32_t i = 0, run; i < n; i += run) {
    if ((run = run_of(m, all + i, n - i, &id)) == 1) continue;
    places += (size_t)m->kernels[id].n_buffers, dims += (size_t)m->kernels[id].n_dims;
  }
  *memory = places ? malloc(places * sizeof(smelt_place) + dims * sizeof(int64_t)) : NULL;
  if (!*memory) return n;
  smelt_place *place = *memory;
  int64_t *dim = (int64_t *)(place + places);
  uint32_t left = 0;
  for (uint32_t i = 0, run; i < n; i += run) {
    if ((run = run_of(m, all + i, n - i, &id)) == 1) {
      all[left++] = all[i];
      continue;
    }
    const smelt_kernel_desc *chain = &m->kernels[id];
    int32_t after = -1;
    for (int32_t k = 0; k < chain->n_buffers; k++) place[k] = (smelt_place){all[i].buffers[0].memory, 0};
    memset(dim, 0, (size_t)chain->n_dims * sizeof *dim);
    for (uint32_t k = 0; k < run; k++) after = take_part(m, &all[i + k], id, after, place, dim);
    all[left++] = (smelt_command){.kernel = id, .groups = 1, .buffers = place, .dims = dim};
    place += chain->n_buffers, dim += chain->n_dims;
  }
  return left;
}
