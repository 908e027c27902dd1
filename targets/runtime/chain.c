/* chain.c: commands for a unit in; the same with neighbours that are parts of one chain as one command, out. */
#include "unit.h"

static const smelt_kernel_desc *small_part(const smelt_model_desc *m, const smelt_command *c) {
  const smelt_kernel_desc *desc = c->kernel < 0 ? NULL : &m->kernels[c->kernel];
  return desc && desc->chain && c->groups <= desc->chain_groups ? desc : NULL;
}

/* How many commands from the first one on are parts of one chain, in its order. */
static uint32_t run_of(const smelt_model_desc *m, const smelt_command *all, uint32_t n) {
  const smelt_kernel_desc *last = small_part(m, &all[0]), *next;
  uint32_t run = 1;
  if (!last) return 1;
  while (run < n && (next = small_part(m, &all[run])) && next->chain == last->chain && next->chain_dim > last->chain_dim) last = next, run++;
  return run;
}

/* The parameters of a chain: what takes no part gets memory that is there, and sizes of 0. */
static void take_part(const smelt_model_desc *m, const smelt_command *c, smelt_place *places, int64_t *dims) {
  const smelt_kernel_desc *desc = &m->kernels[c->kernel];
  memcpy(places + desc->chain_read, c->buffers, (size_t)desc->n_read * sizeof *places);
  memcpy(places + desc->chain_written, c->buffers + desc->n_read, (size_t)(desc->n_buffers - desc->n_read) * sizeof *places);
  dims[desc->chain_dim] = 1;
  memcpy(dims + desc->chain_dim + 1, c->dims, (size_t)desc->n_dims * sizeof *dims);
}

uint32_t rt_chain(const smelt_model_desc *m, smelt_command *all, uint32_t n, void **memory) {
  size_t places = 0, dims = 0;
  for (uint32_t i = 0, run; i < n; i += run) {
    if ((run = run_of(m, all + i, n - i)) == 1) continue;
    const smelt_kernel_desc *chain = &m->kernels[m->kernels[all[i].kernel].chain - 1];
    places += (size_t)chain->n_buffers, dims += (size_t)chain->n_dims;
  }
  *memory = places ? malloc(places * sizeof(smelt_place) + dims * sizeof(int64_t)) : NULL;
  if (!*memory) return n;
  smelt_place *place = *memory;
  int64_t *dim = (int64_t *)(place + places);
  uint32_t left = 0;
  for (uint32_t i = 0, run; i < n; i += run) {
    if ((run = run_of(m, all + i, n - i)) == 1) {
      all[left++] = all[i];
      continue;
    }
    int32_t id = m->kernels[all[i].kernel].chain - 1;
    const smelt_kernel_desc *chain = &m->kernels[id];
    for (int32_t k = 0; k < chain->n_buffers; k++) place[k] = (smelt_place){all[i].buffers[0].memory, 0};
    memset(dim, 0, (size_t)chain->n_dims * sizeof *dim);
    for (uint32_t k = 0; k < run; k++) take_part(m, &all[i + k], place, dim);
    all[left++] = (smelt_command){.kernel = id, .groups = 1, .buffers = place, .dims = dim};
    place += chain->n_buffers, dim += chain->n_dims;
  }
  return left;
}
