/* memory.c: sizes in, memory of arenas and outputs out; bounded sizes are reserved once, others grow to their high-water mark. */
#include "rt.h"

/* Tests replace the system by an allocator that can say no and that AddressSanitizer watches. */
#ifdef SMELT_TEST_ALLOC
void *smelt_test_map(size_t bytes);
void smelt_test_unmap(void *at, size_t bytes);
#define MAP(bytes) smelt_test_map(bytes)
#define UNMAP(at, bytes) smelt_test_unmap(at, bytes)
#define REMAP(at, old, bytes) NULL /* so that contents are copied, and what still points at the old ones is seen */
#else
#define MAP(bytes) sm_mmap(bytes, SM_PROT_READ | SM_PROT_WRITE, SM_MAP_PRIVATE | SM_MAP_ANONYMOUS, -1)
#define UNMAP(at, bytes) sm_munmap(at, bytes)
#define REMAP(at, old, bytes) sm_mremap(at, old, bytes)
#endif

#ifdef SMELT_TEST_ALLOC
enum { PAGE = 64 }; /* nearly exact, so that what lies behind is seen to be outside */
#else
enum { PAGE = 4096 /* a unit of size only: mmap aligns to the system's own page */ };
#endif
/* From here on huge pages pay: fewer faults at the first run and fewer TLB misses after. */
enum { HUGE_FROM = 4 << 20 };

void rt_block_free(rt_block *block) {
  if (block->data) UNMAP(block->data, (size_t)block->capacity);
  block->data = NULL;
  block->capacity = 0;
}

static uint64_t in_pages(uint64_t bytes) { return bytes ? (bytes + PAGE - 1) / PAGE * PAGE : PAGE; }

static int has(const rt_block *block, uint64_t bytes) { return block->data && bytes <= block->capacity; }

/* The block has this memory from here on. 0: the system gave none. */
static int take(rt_block *block, void *data, uint64_t bytes, uint64_t *allocations) {
  if (!data) return 0;
  *block = (rt_block){.data = data, .capacity = bytes};
  ++*allocations;
#ifndef SMELT_TEST_ALLOC
  if (bytes >= HUGE_FROM) sm_madvise(data, (size_t)bytes, SM_MADV_HUGEPAGE);
#endif
  return 1;
}

int rt_block_fit(rt_block *block, uint64_t bytes, uint64_t *allocations) {
  if (has(block, bytes)) return 1;
  if (bytes > SIZE_MAX / 2) return 0;
  rt_block_free(block); /* before, not after: the peak is then the new size alone */
  return take(block, MAP((size_t)in_pages(bytes)), in_pages(bytes), allocations);
}

int rt_block_grow(smelt_rt *rt, rt_block *block, uint64_t bytes) { return rt_block_fit(block, bytes, &rt->session->allocations); }

int rt_block_grow_roomy(smelt_rt *rt, rt_block *block, uint64_t bytes, uint64_t room) {
  if (has(block, bytes)) return 1;
  return rt_block_grow(rt, block, bytes > room ? bytes : room) || (bytes < room && rt_block_grow(rt, block, bytes));
}

/* The pages move where the system can do that: no copy, and never both at once. */
static int extend(smelt_rt *rt, rt_block *block, uint64_t bytes) {
  if (bytes > SIZE_MAX / 2) return 0;
  if (block->data && take(block, REMAP(block->data, (size_t)block->capacity, (size_t)in_pages(bytes)), in_pages(bytes), &rt->session->allocations)) return 1;
  rt_block bigger = {0};
  if (!rt_block_grow(rt, &bigger, bytes)) return 0;
  if (block->data) memcpy(bigger.data, block->data, (size_t)block->capacity);
  rt_block_free(block);
  *block = bigger;
  return 1;
}

int rt_block_extend(smelt_rt *rt, rt_block *block, uint64_t bytes) {
  if (has(block, bytes)) return 1;
  uint64_t room = block->capacity + block->capacity / 2;
  return extend(rt, block, bytes > room ? bytes : room) || (bytes < room && extend(rt, block, bytes));
}

static int32_t out_of_memory(smelt_rt *rt, const char *what, const char *name, int64_t bytes) {
  return rt_error(rt, SMELT_DEVICE, "%s%s: %lld bytes wanted, the system has no more memory; use smaller shapes or close other sessions",
                  what, name, (long long)bytes);
}

/* Is the arena at a unit that only other variants have? */
static int of_others(const smelt_rt *rt, uint32_t i) {
  uint32_t home = rt->model->homes ? rt->model->homes[i] : rt->model->n_units ? 1 : 0;
  return home && !rt_has_unit(rt, home);
}

uint64_t rt_most_of_arena(const smelt_rt *rt, uint32_t i) { return rt->model->most && !of_others(rt, i) ? rt->model->most[i] : 0; }
static uint64_t most_of_state(const smelt_rt *rt, const rt_state *state) { return rt->model->states[state - rt->session->states].most; }
uint64_t rt_most_of_input(const smelt_rt *rt, uint32_t i) {
  const rt_state *state = rt_read_state(rt, i);
  return state ? most_of_state(rt, state) : rt->entry->most ? rt->entry->most[i] : 0;
}
uint64_t rt_most_of_output(const smelt_rt *rt, uint32_t i) {
  const rt_state *state = rt_written_state(rt, i);
  return state ? most_of_state(rt, state) : rt->entry->most ? rt->entry->most[rt->entry->n_inputs + i] : 0;
}

static uint64_t at_once(uint64_t bytes, uint64_t most_bytes) { return bytes < most_bytes ? most_bytes : bytes; }

uint64_t rt_state_room(const smelt_rt *rt, uint32_t i, uint64_t bytes) {
  uint64_t bound = rt->model->states[i].most;
  return bound ? at_once(bytes, bound) : bytes + bytes / 2; /* a state that grows is likely to go on */
}

uint64_t rt_output_room(const smelt_rt *rt, uint32_t i, uint64_t bytes) {
  const rt_state *state = rt_written_state(rt, i);
  return state ? rt_state_room(rt, (uint32_t)(state - rt->session->states), bytes) : at_once(bytes, rt_most_of_output(rt, i));
}

/* A block of so many bytes, unless that is 0; *known counts those that are not. */
static int reserve_block(smelt_rt *rt, rt_block *block, uint64_t bytes, uint32_t *known) {
  *known += bytes != 0;
  if (!bytes || rt_block_grow(rt, block, bytes)) return 1;
  rt_error(rt, SMELT_DEVICE, "model '%s' may need %llu bytes within the bounds of its dims, the system has no more memory; "
           "compile it with lower bounds, or close other sessions", rt->model->name, (unsigned long long)bytes);
  return 0;
}

int32_t rt_reserve_bounded(smelt_rt *rt) {
  const smelt_model_desc *m = rt->model;
  rt_session *all = rt->session;
  uint32_t known = 0, wanted = m->n_arenas + 2 * m->n_states;
  for (uint32_t i = 0; !all->device && i < m->n_arenas; i++)
    if (of_others(rt, i)) wanted--;
    else if (!reserve_block(rt, &all->arenas[i], rt_most_of_arena(rt, i), &known)) return SMELT_DEVICE;
  for (uint32_t i = 0; !all->device && i < m->n_states; i++) {
    rt_state *state = &all->states[i];
    int here = state->begun && !state->resident; /* a value that has come home, which growing would lose */
    known += here && m->states[i].most;
    if (!here && !reserve_block(rt, &state->block, m->states[i].most, &known)) return SMELT_DEVICE;
    if (!reserve_block(rt, &state->spare, m->states[i].most, &known)) return SMELT_DEVICE;
  }
  for (uint32_t e = all->variant * rt_named_entries(m); e < m->n_entries; e++) {
    smelt_rt *view = &all->views[e];
    uint32_t variant = e / rt_named_entries(m);
    /* of a unit's variant those of the CPU as well, which it may turn to */
    if (variant != all->variant && (!all->device || m->variants[variant].units)) continue;
    wanted += rt_given(view->entry);
    for (uint32_t i = 0; i < rt_given(view->entry); i++)
      if (!reserve_block(rt, &view->outputs[i].own, rt_most_of_output(view, i), &known)) return SMELT_DEVICE;
  }
  if (known == wanted) rt_pool_start(&all->pool); /* so that no run asks for stacks either */
  return SMELT_OK;
}

static smelt_addr lose(smelt_rt *rt, int32_t status) {
  rt->lost = status;
  return 0;
}

static smelt_addr reserve(smelt_rt *rt, int32_t arena, int64_t bytes, int keep) {
  if (arena < 0 || (uint32_t)arena >= rt->model->n_arenas || bytes < 0)
    return lose(rt, rt_error(rt, SMELT_INTERNAL, "model '%s' wants %lld bytes for arena %d of %u; compile it again", rt->model->name, (long long)bytes,
             (int)arena, (unsigned)rt->model->n_arenas));
  if ((uint64_t)bytes > rt->session->arena_bytes[arena]) rt->session->arena_bytes[arena] = (uint64_t)bytes; /* rounds of a loop differ */
  if (rt->session->device) {
    smelt_addr at = rt_device_arena(rt, (uint32_t)arena, (uint64_t)bytes, keep);
    return at ? at : lose(rt, SMELT_DEVICE);
  }
  rt_block *block = &rt->session->arenas[arena];
  uint64_t most = rt_most_of_arena(rt, (uint32_t)arena);
  if (!(keep ? rt_block_extend(rt, block, at_once((uint64_t)bytes, most)) : rt_block_grow_roomy(rt, block, (uint64_t)bytes, most)))
    return lose(rt, out_of_memory(rt, "working memory of model ", rt->model->name, bytes));
  return (smelt_addr)(intptr_t)block->data;
}

smelt_addr smelt_rt_reserve(smelt_rt *rt, int32_t arena, int64_t bytes) { return reserve(rt, arena, bytes, 0); }
smelt_addr smelt_rt_grow(smelt_rt *rt, int32_t arena, int64_t bytes) { return reserve(rt, arena, bytes, 1); }

static uintptr_t element_align(DLDataType type) {
  uintptr_t bytes = type.bits / 8u;
  return bytes == 2 || bytes == 4 || bytes == 8 ? bytes : 1;
}

static int misaligned(const void *at, DLDataType type) { return ((uintptr_t)at & (element_align(type) - 1)) != 0; }

/* Generated code writes output i straight into the caller's memory. */
int rt_output_direct(const smelt_rt *rt, uint32_t i) {
  const DLTensor *caller = rt->outputs[i].caller;
  return caller && (rt->session->device || !misaligned((const char *)caller->data + caller->byte_offset, rt->entry->outputs[i].dtype));
}

int32_t rt_stage_inputs(smelt_rt *rt) {
  for (uint32_t i = 0; i < rt->entry->n_inputs; i++) {
    const void *host = rt->input_host[i];
    if (misaligned(host, rt->entry->inputs[i].dtype) && rt->input_bytes[i]) {
      if (!rt_block_grow(rt, &rt->input_staging[i], rt->input_bytes[i]))
        return out_of_memory(rt, "aligned copy of input ", rt->entry->inputs[i].name, (int64_t)rt->input_bytes[i]);
      host = memcpy(rt->input_staging[i].data, host, (size_t)rt->input_bytes[i]);
    }
    rt->input_at[i] = (smelt_addr)(intptr_t)host;
  }
  return SMELT_OK;
}

/* The caller's tensor has the shape that the model computed? */
static int same_shape(smelt_rt *rt, uint32_t i, const int64_t *shape) {
  const smelt_tensor_desc *desc = &rt->entry->outputs[i];
  const DLTensor *caller = rt->outputs[i].caller;
  for (int32_t axis = 0; axis < desc->rank; axis++) {
    if (caller->shape[axis] == shape[axis]) continue;
    rt_error(rt, SMELT_SHAPE, "output '%s' axis %d: your tensor has %lld, the model computes %lld; pass data NULL to let the session own it",
             desc->name, (int)axis, (long long)caller->shape[axis], (long long)shape[axis]);
    return 0;
  }
  return 1;
}

static int32_t impossible(smelt_rt *rt, const smelt_tensor_desc *desc, const int64_t *shape) {
  char dims[256] = "";
  for (int32_t i = 0, at = 0; i < desc->rank && at < (int)sizeof dims - 24; i++)
    at += snprintf(dims + at, sizeof dims - (size_t)at, "%s%lld", i ? "x" : "", (long long)shape[i]);
  return rt_error(rt, SMELT_SHAPE, "output '%s' of %s: its dims multiply to more bytes than this device can address; use smaller shapes",
                  desc->name, dims);
}

smelt_addr smelt_rt_output(smelt_rt *rt, int32_t i, const int64_t *shape) {
  uint64_t bytes = 0;
  if (i < 0 || (uint32_t)i >= rt->entry->n_outputs)
    return lose(rt, rt_error(rt, SMELT_INTERNAL, "model '%s' has no output %d; compile it again", rt->model->name, (int)i));
  const smelt_tensor_desc *desc = &rt->entry->outputs[i];
  const rt_state *state = rt_written_state(rt, (uint32_t)i);
  int known = state ? rt_state_bytes(rt, (uint32_t)(state - rt->session->states), shape, &bytes) : rt_tensor_bytes(desc->dtype, desc->rank, shape, &bytes);
  if (!known) return lose(rt, impossible(rt, desc, shape));
  if (rt_in_place(rt, (uint32_t)i) && bytes > state->bytes)
    return lose(rt, rt_error(rt, SMELT_INTERNAL, "state '%s' has no room for what replaces it; compile the model again", desc->name));
  rt_output *out = &rt->outputs[i];
  if (out->caller && !same_shape(rt, (uint32_t)i, shape)) return lose(rt, SMELT_SHAPE);
  if (desc->rank) memcpy(out->shape, shape, (size_t)desc->rank * sizeof *shape);
  out->bytes = bytes;
  out->host = out->caller && !out->lent ? (char *)out->caller->data + out->caller->byte_offset : NULL;
  int owned = !rt_output_direct(rt, (uint32_t)i) && !(rt->session->device && rt_device_keeps(rt, (uint32_t)i));
  if (owned && !rt_block_grow_roomy(rt, out->block, bytes, rt_output_room(rt, (uint32_t)i, bytes))) return lose(rt, out_of_memory(rt, "output ", desc->name, (int64_t)bytes));
  if (!out->host && !out->lent) out->host = out->block->data;
  out->at = rt->session->device ? rt_device_output(rt, (uint32_t)i, bytes) : (smelt_addr)(intptr_t)(owned ? out->block->data : out->host);
  return out->at ? out->at : lose(rt, SMELT_DEVICE);
}

int32_t rt_finish_outputs(smelt_rt *rt, DLTensor *outputs) {
  for (uint32_t i = 0; i < rt->entry->n_outputs; i++)
    if (!rt->outputs[i].at)
      return rt_error(rt, SMELT_INTERNAL, "model '%s' ended without output '%s'; compile it again", rt->model->name,
                      rt->entry->outputs[i].name);
  for (uint32_t i = 0; i < rt_given(rt->entry); i++) {
    rt_output *out = &rt->outputs[i];
    const smelt_tensor_desc *desc = &rt->entry->outputs[i];
    if (out->caller) { /* misaligned: it was computed beside, or the device has downloaded it already */
      if (!rt->session->device && out->at != (smelt_addr)(intptr_t)out->host) memcpy(out->host, out->block->data, (size_t)out->bytes);
      continue;
    }
    outputs[i] = (DLTensor){.data = out->host, .device = {1, 0}, .ndim = desc->rank, .dtype = desc->dtype, .shape = out->shape};
  }
  return SMELT_OK;
}

smelt_status smelt_memory_stats(const smelt_session *s, smelt_memory *out) {
  if (!s || !out) return rt_refuse(s ? "smelt_memory_stats: out is NULL, wanted where to put the numbers" : "smelt_memory_stats: the session is NULL; open one first");
  const smelt_rt *rt = (const smelt_rt *)s;
  if (rt_is_foreign(rt)) return rt_refuse("smelt_memory_stats: " RT_FOREIGN);
  const rt_traffic *traffic = &rt->session->traffic;
  *out = (smelt_memory){.weights_bytes = rt->model->weights_bytes, .allocations = rt->session->allocations, .runs = rt->session->runs,
                        .crossings = rt->session->crossings, .crossed_bytes = rt->session->crossed_bytes, .shared = rt->session->shared,
                        .shared_bytes = rt->session->shared_bytes, .launches = traffic->launches, .submits = traffic->submits,
                        .uploads = traffic->uploads, .uploaded_bytes = traffic->uploaded_bytes, .reads = traffic->reads,
                        .read_bytes = traffic->read_bytes, .waits = traffic->waits, .cache_hits = traffic->cache_hits,
                        .cache_misses = traffic->cache_misses, .kernel_forms = traffic->kernel_forms, .lesser_forms = traffic->lesser_forms};
  for (uint32_t i = 0; i < rt->model->n_arenas; i++) {
    out->arena_bytes += rt->session->arena_bytes[i] * (1 + (uint64_t)rt_device_mirrors(rt, i));
    out->arena_capacity += rt->session->arenas[i].capacity;
  }
  for (uint32_t e = 0; e < rt->model->n_entries; e++) {
    const smelt_rt *view = &rt->session->views[e];
    for (uint32_t i = 0; i < rt_given(view->entry); i++) out->output_capacity += view->outputs[i].own.capacity;
  }
  for (uint32_t k = 0; k < rt->model->n_states; k++) {
    const rt_state *state = &rt->session->states[k];
    out->state_capacity += state->block.capacity + state->spare.capacity;
  }
  for (uint32_t v = 0; v < rt->model->n_variants; v++) {
    const rt_device *device = rt->session->ways[v].device;
    out->arena_capacity += device ? rt_device_arena_capacity(device) : 0;
    out->state_capacity += device ? rt_device_state_capacity(rt, device) : 0;
  }
  return SMELT_OK;
}

void rt_free_tensors(smelt_rt *rt) {
  for (uint32_t i = 0; i < rt->entry->n_inputs; i++) rt_block_free(&rt->input_staging[i]);
  for (uint32_t i = 0; i < rt->entry->n_outputs; i++) {
    rt_state *state = rt_written_state(rt, i);
    rt_block_free(state ? &state->spare : &rt->outputs[i].own);
  }
}

static void trim_units(smelt_rt *rt, void *unused) {
  (void)unused;
  rt_device_trim(rt);
}

smelt_status smelt_trim(smelt_session *s) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_trim: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_trim: " RT_FOREIGN);
  if (!rt_take(rt)) return rt_refuse_busy(rt, "smelt_trim");
  for (uint32_t i = 0; i < rt->model->n_arenas; i++) rt_block_free(&rt->session->arenas[i]);
  for (uint32_t i = 0; i < rt->model->n_entries; i++) rt_free_tensors(&rt->session->views[i]);
  rt_state_trim(rt);
  rt_bind_each(rt, trim_units, NULL);
  rt_release(rt);
  return SMELT_OK;
}
