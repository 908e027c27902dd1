/* vulkan_driver.c: the driver (driver.h) for Vulkan 1.1 devices; it opens the loader by dlopen. A unit's code is a package of
 * SPIR-V modules (package.py). */
#include "vulkan_work.h"

/* ---- copies ---- */
static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int waits) {
  vk_unit *u = state;
  vk_memory *m = memory;
  (void)waits; /* what the host gave is copied here either way */
  if (m->piece.host && !busy(u) && !u->n_reads) {
    memcpy(m->piece.host + offset, host, bytes);
    return 0;
  }
  int32_t code = prepare(u);
  vk_object buffer;
  uint64_t at;
  char *staged = code ? NULL : stage(u, bytes, &buffer, &at, &code);
  if (!staged) return code;
  memcpy(staged, host, bytes);
  record_copy(u, m->piece.buffer, offset, buffer, at, bytes);
  return 0;
}

static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int waits) {
  vk_unit *u = state;
  vk_memory *m = memory;
  if (waits == SMELT_SOON && m->piece.host && !busy(u) && !u->hung) return memcpy(host, m->piece.host + offset, bytes), 0;
  int now = waits == SMELT_SOON || !m->piece.host; /* into staging, as it may change before it is read */
  int32_t code = u->hung ? SMELT_HANGS : now ? begin(u) : 0;
  if (code) return code;
  if (u->n_reads == u->room_reads) {
    uint32_t room = u->room_reads ? 2 * u->room_reads : 16;
    pending_read *more = realloc(u->reads, room * sizeof *more);
    if (!more) return VK_OUT_OF_HOST_MEMORY;
    u->reads = more;
    u->room_reads = room;
  }
  u->reads[u->n_reads++] = (pending_read){.memory = m, .offset = offset, .bytes = bytes, .host = host, .soon = waits == SMELT_SOON};
  if (now && (code = settle_reads(u))) return u->n_reads--, code;
  return waits == SMELT_NOW ? wait(u) : 0;
}

static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  vk_unit *u = state;
  int32_t code = prepare(u);
  if (!code) record_copy(u, ((vk_memory *)to)->piece.buffer, to_offset, ((vk_memory *)from)->piece.buffer, from_offset, bytes);
  return code;
}

static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  vk_unit *u = state;
  vk_memory *m = calloc(1, sizeof *m);
  if (!m) return *code = VK_OUT_OF_HOST_MEMORY, NULL;
  if (!create_piece(u, &m->piece, bytes, 0, code)) return free(m), NULL;
  if (contents && (*code = upload(u, m, 0, contents, bytes, 1))) {
    destroy_piece(u, &m->piece);
    return free(m), NULL;
  }
  return m;
}

static void release(void *state, void *memory) {
  vk_unit *u = state;
  vk_memory *m = memory;
  vk_memory **dead = u->n_reads ? &u->dead : &newest(u)->dead;
  m->next = *dead;
  *dead = m;
  if (!busy(u) && !u->n_reads) bury(u, dead);
}

static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  vk_unit *u = state;
  vk_memory *m = memory;
  if ((*code = wait(u))) return NULL;
  if (m->piece.host) return m->piece.host;
  if (!create_piece(u, &m->view, bytes, 1, code)) return NULL;
  m->view_writes = writes;
  if (!(*code = prepare(u))) {
    record_copy(u, m->view.buffer, 0, m->piece.buffer, 0, bytes);
    *code = wait(u);
  }
  if (!*code) return m->view.host;
  destroy_piece(u, &m->view);
  return NULL;
}

static int32_t unmap(void *state, void *memory, void *mapped) {
  vk_unit *u = state;
  vk_memory *m = memory;
  if (!m->view.buffer || mapped != m->view.host) return 0;
  int32_t code = 0;
  if (m->view_writes && !(code = prepare(u))) {
    record_copy(u, m->piece.buffer, 0, m->view.buffer, 0, m->view.bytes < m->piece.bytes ? m->view.bytes : m->piece.bytes);
    code = wait(u);
  }
  destroy_piece(u, &m->view);
  return code;
}

static void *known(void *state, void *memory, DLDevice *device) {
  vk_object buffer = ((vk_memory *)memory)->piece.buffer;
  (void)state;
  *device = (DLDevice){7 /* kDLVulkan */, 0};
  return buffer == (uintptr_t)buffer ? (void *)(uintptr_t)buffer : NULL; /* a number of 64 bits, also where addresses have 32 */
}

static void *adopt(void *state, DLDevice device, void *data, size_t bytes, const char **why) {
  (void)state, (void)device, (void)data, (void)bytes;
  return *why = "each session has a Vulkan device of its own, and memory belongs to one", NULL;
}

static int32_t shares(const void *state) { return ((const vk_unit *)state)->visible ? SMELT_SHARES_APART : SMELT_SHARES_NOT; }

/* ---- launches ---- */
/* The polynomial at *at, in the sizes of dims; UINT64_MAX where that is too large to tell. *at moves behind it. */
static uint64_t evaluate(const uint32_t **at, const int64_t *dims) {
  uint64_t total = 0;
  for (uint32_t terms = *(*at)++; terms; terms--) {
    uint64_t term = (*at)[0] | (uint64_t)(*at)[1] << 32;
    const uint32_t *factors = *at + 3, n = (*at)[2];
    *at = factors + n;
    for (uint32_t i = 0; i < n; i++)
      if (!dims[factors[i]]) term = 0;
    for (uint32_t i = 0; i < n && term; i++) {
      int64_t d = dims[factors[i]];
      if (__builtin_mul_overflow(term, d < 0 ? 0 - (uint64_t)d : (uint64_t)d, &term)) term = UINT64_MAX;
    }
    if (__builtin_add_overflow(total, term, &total)) total = UINT64_MAX;
  }
  return total;
}

static vk_object set_of(vk_unit *u, const vk_kernel *k, uint32_t n, int32_t *code) {
  vk_slot *slot = u->slot;
  if (!slot->sets_left || slot->buffers_left < n) {
    if (slot->pool == slot->n_pools) {
      vk_object *more = realloc(slot->pools, (slot->n_pools + 1) * sizeof *more);
      vk_pool_size size = {VK_STORAGE_DESCRIPTOR, POOL_BUFFERS};
      vk_pool_create create = {.type = VK_POOL_CREATE, .max_sets = POOL_SETS, .n = 1, .sizes = &size};
      if (!more) return *code = VK_OUT_OF_HOST_MEMORY, 0;
      slot->pools = more;
      if ((*code = u->vk.vkCreateDescriptorPool(u->device, &create, NULL, &slot->pools[slot->n_pools]))) return 0;
      slot->n_pools++;
    }
    slot->pool++;
    slot->sets_left = POOL_SETS;
    slot->buffers_left = POOL_BUFFERS;
  }
  vk_set_allocate allocate = {.type = VK_SET_ALLOCATE, .pool = slot->pools[slot->pool - 1], .n = 1, .layouts = &k->set_layout};
  vk_object set = 0;
  if ((*code = u->vk.vkAllocateDescriptorSets(u->device, &allocate, &set))) return 0;
  slot->sets_left--;
  slot->buffers_left -= n;
  vk_write_set writes[MAX_BOUND + 1];
  for (uint32_t i = 0; i < n; i++)
    writes[i] = (vk_write_set){.type = VK_WRITE_SET, .set = set, .binding = i, .count = 1, .descriptor = VK_STORAGE_DESCRIPTOR, .buffers = &u->infos[i]};
  u->vk.vkUpdateDescriptorSets(u->device, n, writes, 0, NULL);
  return set;
}

/* The part of a memory from `from` to `to` as a descriptor; *at: where that begins. */
static int32_t window(const vk_unit *u, const vk_piece *piece, uint64_t from, uint64_t to, vk_buffer_info *info, uint64_t *at) {
  *at = piece->bytes <= u->most_range ? 0 : from / u->alignment * u->alignment;
  uint64_t rest = piece->bytes - *at;
  *info = (vk_buffer_info){piece->buffer, *at, rest < u->most_range ? rest : u->most_range};
  return piece->bytes > u->most_range && to - *at > u->most_range ? RANGE : 0;
}

static const vk_piece *piece_of(const vk_unit *u, const tensor *t) { return t->memory ? &t->memory->piece : &u->nothing; }

/* The tensors from `first` on, which share a binding: where they lie, if that is one memory; else in a copy of theirs. */
static int32_t share(vk_unit *u, uint32_t first, uint32_t n, vk_memory **packed) {
  uint64_t from = UINT64_MAX, to = 0, total = 0, at = 0;
  const vk_memory *memory = NULL;
  int one = 1;
  for (uint32_t i = first; i < n; i++) {
    const tensor *t = &u->tensors[i];
    total += (t->bytes + 15) / 16 * 16;
    if (!t->memory || !t->bytes) continue;
    one &= !memory || memory == t->memory;
    memory = t->memory;
    if (t->offset < from) from = t->offset;
    if (t->offset + t->bytes > to) to = t->offset + t->bytes;
  }
  if (!memory) return window(u, &u->nothing, 0, 0, &u->infos[first], &at);
  if (one && !window(u, &memory->piece, from, to, &u->infos[first], &at)) {
    for (uint32_t i = first; i < n; i++) u->tensors[i].at = u->tensors[i].offset - at;
    return 0;
  }
  int32_t code = 0;
  if (total > u->most_range) return RANGE;
  if (!(*packed = allocate(u, total, NULL, &code))) return code;
  (*packed)->next = u->slot->dead; /* it lives until the work has ended */
  u->slot->dead = *packed;
  for (uint32_t i = first; i < n; i++) {
    tensor *t = &u->tensors[i];
    t->at = at;
    if (t->memory && t->bytes) record_copy(u, (*packed)->piece.buffer, at, t->memory->piece.buffer, t->offset, t->bytes);
    at += (t->bytes + 15) / 16 * 16;
  }
  return window(u, &(*packed)->piece, 0, total, &u->infos[first], &at);
}

/* The tensors of a launch, and their descriptors. */
static int32_t bind(vk_unit *u, const vk_kernel *k, const smelt_place *buffers, const int64_t *dims, vk_memory **packed) {
  const part_row *part = (const part_row *)k->row;
  const uint32_t *details = u->package + part->details, *at = details + part->n_bindings + part->n_parameters;
  for (uint32_t i = 0; i < part->n_parameters; i++) {
    uint32_t parameter = details[part->n_bindings + i];
    if (parameter >> 24 == 1 && dims[parameter & 0xFFFFFF] != (int32_t)dims[parameter & 0xFFFFFF]) return TOO_LARGE;
  }
  if (evaluate(&at, dims) > INT32_MAX) return TOO_LARGE;
  if (evaluate(&at, dims) / ROUND > u->most_rounds) return ROUNDS;
  for (uint32_t i = 0; i < part->n_bindings; i++) {
    const smelt_place *place = &buffers[details[i] & INT32_MAX];
    u->tensors[i] = (tensor){place->memory, place->offset, evaluate(&at, dims), 0, details[i] >> 31};
    if (u->tensors[i].bytes > UINT32_MAX) return RANGE;
  }
  for (uint32_t i = 0; i < part->n_bindings && i < k->shared; i++) {
    tensor *t = &u->tensors[i];
    uint64_t start, offset = t->memory ? t->offset : 0;
    int32_t code = window(u, piece_of(u, t), offset, offset + t->bytes, &u->infos[i], &start);
    if (code) return code;
    t->at = offset - start;
  }
  return part->n_bindings > k->shared ? share(u, k->shared, part->n_bindings, packed) : 0;
}

/* Barriers before a launch: by the ranges of its tensors. */
static void order_launch(vk_unit *u, uint32_t n, uint32_t shared, const vk_memory *packed) {
  for (uint32_t i = 0; i < n; i++) {
    const tensor *t = &u->tensors[i];
    const vk_piece *piece = packed && i >= shared ? &packed->piece : piece_of(u, t);
    uint64_t from = packed && i >= shared ? t->at : t->offset;
    u->used[i] = (used_range){piece->buffer, from / 4 * 4, (from + t->bytes + 3) / 4 * 4, t->written}; /* stores are of words */
  }
  order(u, u->used, n);
}

static void parameters(vk_unit *u, const part_row *part, const int64_t *dims, int64_t groups) {
  const uint32_t *rows = u->package + part->details + part->n_bindings;
  for (uint32_t i = 0; i < part->n_parameters; i++) {
    uint32_t index = rows[i] & 0xFFFFFF;
    switch (rows[i] >> 24) {
    case 0: u->words[i] = (uint32_t)u->tensors[i].at; break; /* they come first, in the order of bindings */
    case 2: u->words[i] = (uint32_t)groups; break;
    case 4: u->words[i] = (uint32_t)((uint64_t)dims[index] >> 32); break;
    default: u->words[i] = (uint32_t)dims[index]; /* whole, or its low half */
    }
  }
}

static int32_t dispatch(vk_unit *u, const vk_kernel *k, int64_t groups) {
  const part_row *part = (const part_row *)k->row;
  uint64_t x = (uint64_t)groups < u->most_groups[0] ? (uint64_t)groups : u->most_groups[0], y = ((uint64_t)groups + x - 1) / x;
  if (y > u->most_groups[1]) y = u->most_groups[1];
  uint64_t z = ((uint64_t)groups + x * y - 1) / (x * y);
  if (groups > INT32_MAX || z > u->most_groups[2]) return GROUPS;
  uint32_t n = bound(k);
  int32_t code = 0;
  if (!pushed(part)) {
    vk_object buffer = 0;
    uint64_t at = 0;
    char *words = stage(u, part->n_parameters * 4, &buffer, &at, &code);
    if (!words) return code;
    memcpy(words, u->words, part->n_parameters * 4);
    u->infos[n - 1] = (vk_buffer_info){buffer, at, part->n_parameters * 4};
  }
  vk_object set = n ? set_of(u, k, n, &code) : 0;
  if (code) return code;
  u->vk.vkCmdBindPipeline(u->slot->commands, VK_BIND_COMPUTE, k->pipeline);
  if (n) u->vk.vkCmdBindDescriptorSets(u->slot->commands, VK_BIND_COMPUTE, k->layout, 0, 1, &set, 0, NULL);
  if (pushed(part) && part->n_parameters) u->vk.vkCmdPushConstants(u->slot->commands, k->layout, VK_STAGE_COMPUTE, 0, part->n_parameters * 4, u->words);
  int timed = u->queries && u->n_timed < MOST_TIMED;
  if (timed) {
    u->vk.vkCmdResetQueryPool(u->slot->commands, u->queries, 2 * u->n_timed, 2);
    u->vk.vkCmdWriteTimestamp(u->slot->commands, VK_AT_COMPUTE, u->queries, 2 * u->n_timed);
  }
  u->vk.vkCmdDispatch(u->slot->commands, (uint32_t)x, (uint32_t)y, (uint32_t)z);
  if (timed) u->vk.vkCmdWriteTimestamp(u->slot->commands, VK_AT_COMPUTE, u->queries, 2 * u->n_timed + 1);
  if (u->queries) u->n_timed++;
  u->recorded++;
  return 0;
}

static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  vk_unit *u = state;
  vk_kernel *k = &u->kernels[id];
  const part_row *part = (const part_row *)k->row;
  vk_memory *packed = NULL;
  int32_t code = prepare(u);
  if (!code) code = bind(u, k, buffers, dims, &packed);
  if (code) return code;
  parameters(u, part, dims, groups);
  order_launch(u, part->n_bindings, k->shared, packed);
  code = dispatch(u, k, groups);
  for (uint32_t i = k->shared; packed && i < part->n_bindings && !code; i++) {
    const tensor *t = &u->tensors[i];
    if (t->written && t->memory && t->bytes) record_copy(u, t->memory->piece.buffer, t->offset, packed->piece.buffer, t->at, t->bytes);
  }
  return code;
}

static void *record(void *state, const smelt_command *commands, uint32_t n) {
  vk_unit *u = state;
  if (u->hung || flush(u)) return NULL; /* a failure is told when somebody waits */
  vk_slot *list = begin_list(u);
  int32_t code = 0;
  for (uint32_t i = 0; list && i < n && !code; i++) {
    const smelt_command *c = &commands[i];
    const smelt_place *to = &c->buffers[0], *from = &c->buffers[1];
    code = c->kernel >= 0 ? launch(u, c->kernel, c->buffers, c->dims, c->groups)
                          : copy(u, to->memory, (size_t)to->offset, from->memory, (size_t)from->offset, (size_t)c->groups);
  }
  return list ? end_list(u, list, code) : NULL;
}

static int32_t finish(void *state) {
  vk_unit *u = state;
  return u->device ? wait(u) : 0;
}

/* ---- the device's times ---- */
static int32_t take_times(void *state, int on) {
  vk_unit *u = state;
  const vk_query_pool_create create = {.type = VK_QUERY_POOL_CREATE, .kind = VK_TIMESTAMP, .count = 2 * MOST_TIMED};
  int32_t code = wait(u);
  u->n_timed = 0;
  if (code || on == (u->queries != 0)) return code;
  if (!on) {
    u->vk.vkDestroyQueryPool(u->device, u->queries, NULL);
    u->queries = 0;
    return 0;
  }
  return u->timestamp_ns > 0 ? u->vk.vkCreateQueryPool(u->device, &create, NULL, &u->queries) : -1;
}

static int64_t elapsed(void *state) {
  vk_unit *u = state;
  uint64_t at[2 * MOST_TIMED], all = u->timestamp_bits < 64 ? ((uint64_t)1 << u->timestamp_bits) - 1 : UINT64_MAX, steps = 0;
  uint32_t n = u->n_timed;
  u->n_timed = 0;
  if (!n || n > MOST_TIMED || u->hung || busy(u)) return -1;
  if (u->vk.vkGetQueryPoolResults(u->device, u->queries, 0, 2 * n, sizeof at, at, sizeof *at, VK_RESULT_64)) return -1;
  for (uint32_t i = 0; i < n; i++) steps += (at[2 * i + 1] - at[2 * i]) & all;
  return (int64_t)((double)steps * (double)u->timestamp_ns);
}

/* ---- opening and closing ---- */
static int32_t create_commands(smelt_rt *rt, vk_unit *u) {
  vk_command_pool_create pool = {.type = VK_COMMAND_POOL_CREATE, .flags = VK_RESET_COMMAND_BUFFER, .family = u->family};
  vk_fence_create fence = {.type = VK_FENCE_CREATE};
  int32_t code = u->vk.vkCreateCommandPool(u->device, &pool, NULL, &u->command_pool);
  vk_command_allocate allocate = {.type = VK_COMMAND_ALLOCATE, .pool = u->command_pool, .n = 1};
  u->slot = newest(u);
  for (uint32_t i = 0; i < RING && !code; i++) {
    code = u->vk.vkAllocateCommandBuffers(u->device, &allocate, &u->ring[i].commands);
    if (!code) code = u->vk.vkCreateFence(u->device, &fence, NULL, &u->ring[i].fence);
  }
  if (!code) create_piece(u, &u->nothing, 64, 0, &code);
  return code ? vk_failed(rt, u, "making a queue of commands", code) : SMELT_OK;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  vk_unit *u = calloc(1, sizeof *u + rt->model->n_kernels * sizeof *u->kernels);
  if (!u) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  *state = u;
  u->model = rt->model;
  u->desc = &rt->model->units[unit - 1];
  u->unit = unit;
  u->kernels = (vk_kernel *)(u + 1);
  int32_t (*const steps[])(smelt_rt *, vk_unit *) = {read_package, load_functions, create_instance, choose_device, create_device, create_commands, create_pipelines};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int32_t status = steps[i](rt, u);
    if (status) return status;
  }
  return SMELT_OK;
}

static const char *device_name(const void *state) { return ((const vk_unit *)state)->name; }

static void close_unit(void *state) {
  vk_unit *u = state;
  if (u->hung) return; /* the device may be using all of it */
  if (u->device) {
    u->vk.vkDeviceWaitIdle(u->device);
    for (uint32_t i = 0; i < RING; i++) destroy_slot(u, &u->ring[i]);
    drop_staging(u, &u->held, 0);
    bury(u, &u->dead);
    destroy_piece(u, &u->nothing);
    for (uint32_t i = 0; i < u->model->n_kernels; i++) {
      vk_kernel *k = &u->kernels[i];
      if (k->pipeline) u->vk.vkDestroyPipeline(u->device, k->pipeline, NULL);
      if (k->layout) u->vk.vkDestroyPipelineLayout(u->device, k->layout, NULL);
      if (k->set_layout) u->vk.vkDestroyDescriptorSetLayout(u->device, k->set_layout, NULL);
    }
    if (u->queries) u->vk.vkDestroyQueryPool(u->device, u->queries, NULL);
    if (u->cache) u->vk.vkDestroyPipelineCache(u->device, u->cache, NULL);
    if (u->command_pool) u->vk.vkDestroyCommandPool(u->device, u->command_pool, NULL);
    u->vk.vkDestroyDevice(u->device, NULL);
  }
  if (u->instance && u->vk.vkDestroyInstance) u->vk.vkDestroyInstance(u->instance, NULL);
  free(u->reads);
  free(u->tensors);
  free(u->used);
  free(u->words);
  free(u->refusals);
  free(u->package);
  free(u);
}

const smelt_driver smelt_driver_vulkan = {
    .name = "Vulkan", .told = vk_told, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .shares = shares, .launch = launch, .finish = finish, .flush = flush,
    .record = record, .submit = submit, .forget = forget, .clock = take_times, .elapsed = elapsed, .mark = mark, .reach = reach,
    .form = form_of, .known = known, .adopt = adopt,
};
