/* vulkan_driver.c: the driver (driver.h) for Vulkan 1.1 devices; it opens the loader by dlopen. A unit's code is a package of
 * SPIR-V modules (package.py).
 *
 * Work is recorded into one command buffer and submitted by `flush`, or when somebody waits. Ranges of memory that the recorded
 * work reads and writes are kept, so that a barrier stands only between launches that depend on each other. */
#include "vulkan_pipelines.h"

/* ---- memory ---- */
static void destroy_piece(vk_unit *u, vk_piece *piece) {
  if (piece->buffer) u->vk.vkDestroyBuffer(u->device, piece->buffer, NULL);
  if (piece->memory) u->vk.vkFreeMemory(u->device, piece->memory, NULL); /* and it is unmapped */
  *piece = (vk_piece){0};
}

/* A buffer with memory of its own, for staging, which the host sees, or not; 0 and *code on failure. */
static int32_t create_piece(vk_unit *u, vk_piece *piece, uint64_t bytes, int for_staging, int32_t *code) {
  uint32_t type = for_staging ? u->staging_type : u->memory_type;
  vk_buffer_create create = {.type = VK_BUFFER_CREATE, .bytes = (bytes + 15) / 16 * 16, .usage = VK_USAGE_ALL};
  *piece = (vk_piece){.bytes = create.bytes};
  *code = u->vk.vkCreateBuffer(u->device, &create, NULL, &piece->buffer);
  if (!*code) {
    vk_requirements wants;
    u->vk.vkGetBufferMemoryRequirements(u->device, piece->buffer, &wants);
    vk_memory_allocate allocate = {.type = VK_MEMORY_ALLOCATE, .bytes = wants.bytes, .memory_type = type};
    *code = wants.types >> type & 1 ? u->vk.vkAllocateMemory(u->device, &allocate, NULL, &piece->memory) : VK_OUT_OF_DEVICE_MEMORY;
  }
  if (!*code) *code = u->vk.vkBindBufferMemory(u->device, piece->buffer, piece->memory, 0);
  if (!*code && (for_staging || u->visible)) {
    void *host = NULL;
    *code = u->vk.vkMapMemory(u->device, piece->memory, 0, VK_WHOLE_SIZE, 0, &host);
    piece->host = host;
  }
  if (*code) destroy_piece(u, piece);
  return !*code;
}

/* Bytes of staging that stay as they are until the work has ended; NULL and *code on failure. */
static char *stage(vk_unit *u, uint64_t bytes, vk_object *buffer, uint64_t *offset, int32_t *code) {
  staging *s = u->staging;
  uint64_t step = u->alignment > 16 ? u->alignment : 16, at = s ? (s->used + step - 1) / step * step : 0;
  if (!s || bytes > s->piece.bytes || at > s->piece.bytes - bytes) {
    s = calloc(1, sizeof *s);
    if (!s) return *code = VK_OUT_OF_HOST_MEMORY, NULL;
    if (!create_piece(u, &s->piece, bytes > STAGING_BYTES ? bytes : STAGING_BYTES, 1, code)) return free(s), NULL;
    s->next = u->staging;
    u->staging = s;
    at = 0;
  }
  s->used = at + bytes;
  *buffer = s->piece.buffer;
  *offset = at;
  return s->piece.host + at;
}

/* ---- recording ---- */
/* Whether there is work that has not ended, recorded or under way. */
static int busy(const vk_unit *u) { return u->recording || u->under_way; }

static void barrier(vk_unit *u, uint32_t to_stage, uint32_t to) {
  vk_memory_barrier all = {.type = VK_MEMORY_BARRIER, .from = VK_SHADER_WRITE | VK_TRANSFER_WRITE, .to = to};
  u->vk.vkCmdPipelineBarrier(u->commands, VK_AT_COMPUTE | VK_AT_TRANSFER, to_stage, 0, 1, &all, 0, NULL, 0, NULL);
  u->n_ranges = 0;
}

static int overlaps(const vk_unit *u, vk_object buffer, uint64_t from, uint64_t to, int written) {
  for (uint32_t i = 0; i < u->n_ranges; i++) {
    const used_range *r = &u->ranges[i];
    if (r->buffer == buffer && (written || r->written) && from < r->to && r->from < to) return 1;
  }
  return 0;
}

/* A step that uses these ranges comes next: after what it depends on. */
static void order(vk_unit *u, const used_range *ranges, uint32_t n) {
  int wait = u->n_ranges + n > MAX_RANGES;
  for (uint32_t i = 0; i < n && !wait; i++) wait = overlaps(u, ranges[i].buffer, ranges[i].from, ranges[i].to, ranges[i].written);
  if (wait) barrier(u, VK_AT_COMPUTE | VK_AT_TRANSFER, VK_SHADER_READ | VK_SHADER_WRITE | VK_TRANSFER_READ | VK_TRANSFER_WRITE);
  for (uint32_t i = 0; i < n && u->n_ranges < MAX_RANGES; i++) u->ranges[u->n_ranges++] = ranges[i];
}

static void record_copy(vk_unit *u, vk_object to, uint64_t to_offset, vk_object from, uint64_t from_offset, uint64_t bytes) {
  used_range ranges[] = {{to, to_offset, to_offset + bytes, 1}, {from, from_offset, from_offset + bytes, 0}};
  vk_buffer_copy copy = {from_offset, to_offset, bytes};
  order(u, ranges, 2);
  u->vk.vkCmdCopyBuffer(u->commands, from, to, 1, &copy);
  u->recorded++;
}

/* What the work has used, after its end. */
static void clean(vk_unit *u) {
  for (vk_memory *m = u->dead, *next; m; m = next) {
    next = m->next;
    destroy_piece(u, &m->piece);
    destroy_piece(u, &m->view);
    free(m);
  }
  u->dead = NULL;
  for (staging *s = u->staging, *next; s; s = next) { /* the first ordinary one stays */
    next = s->next;
    if (s->piece.bytes == STAGING_BYTES && !next) {
      s->used = 0;
      u->staging = s;
      break;
    }
    destroy_piece(u, &s->piece);
    free(s);
    u->staging = next;
  }
  for (uint32_t i = 0; i < u->pool; i++) u->vk.vkResetDescriptorPool(u->device, u->pools[i], 0);
  u->pool = 0;
  u->sets_left = u->buffers_left = 0;
  u->n_ranges = u->recorded = 0;
}

/* What is recorded is under way. */
static int32_t flush(void *state) {
  vk_unit *u = state;
  if (!u->recording) return 0;
  barrier(u, VK_AT_HOST, VK_HOST_READ);
  u->recording = 0;
  u->under_way = 1; /* also where it fails: `wait` makes the buffer ready again */
  int32_t code = u->vk.vkEndCommandBuffer(u->commands);
  vk_submit submit = {.type = VK_SUBMIT, .n = 1, .commands = &u->commands};
  return u->submitted = code ? code : u->vk.vkQueueSubmit(u->queue, 1, &submit, u->fence);
}

/* Submit what is recorded, wait for it, and give the reads that were asked for. */
static int32_t wait(vk_unit *u) {
  if (u->hung) return SMELT_HANGS;
  flush(u);
  int32_t code = u->submitted;
  if (u->under_way) {
    if (!code) code = u->vk.vkWaitForFences(u->device, 1, &u->fence, 1, smelt_rt_patience());
    if (code == VK_TIMEOUT) {
      u->hung = 1;
      u->n_reads = 0;
      return SMELT_HANGS;
    }
    if (code) u->vk.vkDeviceWaitIdle(u->device);
    int32_t reset = u->vk.vkResetFences(u->device, 1, &u->fence);
    u->vk.vkResetCommandBuffer(u->commands, 0);
    code = code ? code : reset;
    u->under_way = u->submitted = 0;
  }
  for (uint32_t i = 0; i < u->n_reads && !code; i++) {
    const pending_read *r = &u->reads[i];
    memcpy(r->host, r->memory ? r->memory->piece.host + r->offset : r->staged, (size_t)r->bytes);
  }
  u->n_reads = 0;
  clean(u);
  return code;
}

static int32_t begin(vk_unit *u) {
  if (u->hung) return SMELT_HANGS;
  if (u->recording) return 0;
  int32_t code = u->under_way ? wait(u) : 0; /* its buffer is the only one */
  vk_command_begin begin = {.type = VK_COMMAND_BEGIN, .flags = VK_ONE_TIME};
  if (!code) code = u->vk.vkBeginCommandBuffer(u->commands, &begin);
  u->recording = !code;
  return code;
}

/* Reads that were to be made at the end, of memory that may change before: into staging, now. */
static int32_t settle_reads(vk_unit *u) {
  for (uint32_t i = 0; i < u->n_reads; i++) {
    pending_read *r = &u->reads[i];
    vk_object buffer;
    uint64_t offset;
    int32_t code = 0;
    if (!r->memory) continue;
    char *staged = stage(u, r->bytes, &buffer, &offset, &code);
    if (!staged) return code;
    record_copy(u, buffer, offset, r->memory->piece.buffer, r->offset, r->bytes);
    r->staged = staged;
    r->memory = NULL;
  }
  return 0;
}

/* Before any step that is recorded. */
static int32_t prepare(vk_unit *u) {
  if (u->recorded >= MAX_RECORDED) {
    int32_t code = wait(u);
    if (code) return code;
  }
  int32_t code = begin(u);
  return code ? code : settle_reads(u);
}

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
  int32_t code = u->hung ? SMELT_HANGS : m->piece.host ? 0 : begin(u);
  if (code) return code;
  if (u->n_reads == u->room_reads) {
    uint32_t room = u->room_reads ? 2 * u->room_reads : 16;
    pending_read *more = realloc(u->reads, room * sizeof *more);
    if (!more) return VK_OUT_OF_HOST_MEMORY;
    u->reads = more;
    u->room_reads = room;
  }
  u->reads[u->n_reads++] = (pending_read){.memory = m, .offset = offset, .bytes = bytes, .host = host};
  if (!m->piece.host && (code = settle_reads(u))) return u->n_reads--, code;
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
  m->next = u->dead;
  u->dead = m;
  if (!busy(u) && !u->n_reads) clean(u);
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
  if (!u->sets_left || u->buffers_left < n) {
    if (u->pool == u->n_pools) {
      vk_object *more = realloc(u->pools, (u->n_pools + 1) * sizeof *more);
      vk_pool_size size = {VK_STORAGE_DESCRIPTOR, POOL_BUFFERS};
      vk_pool_create create = {.type = VK_POOL_CREATE, .max_sets = POOL_SETS, .n = 1, .sizes = &size};
      if (!more) return *code = VK_OUT_OF_HOST_MEMORY, 0;
      u->pools = more;
      if ((*code = u->vk.vkCreateDescriptorPool(u->device, &create, NULL, &u->pools[u->n_pools]))) return 0;
      u->n_pools++;
    }
    u->pool++;
    u->sets_left = POOL_SETS;
    u->buffers_left = POOL_BUFFERS;
  }
  vk_set_allocate allocate = {.type = VK_SET_ALLOCATE, .pool = u->pools[u->pool - 1], .n = 1, .layouts = &k->set_layout};
  vk_object set = 0;
  if ((*code = u->vk.vkAllocateDescriptorSets(u->device, &allocate, &set))) return 0;
  u->sets_left--;
  u->buffers_left -= n;
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
  (*packed)->next = u->dead; /* it lives until the work has ended */
  u->dead = *packed;
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
  u->vk.vkCmdBindPipeline(u->commands, VK_BIND_COMPUTE, k->pipeline);
  if (n) u->vk.vkCmdBindDescriptorSets(u->commands, VK_BIND_COMPUTE, k->layout, 0, 1, &set, 0, NULL);
  if (pushed(part) && part->n_parameters) u->vk.vkCmdPushConstants(u->commands, k->layout, VK_STAGE_COMPUTE, 0, part->n_parameters * 4, u->words);
  int timed = u->queries && u->n_timed < MOST_TIMED;
  if (timed) {
    u->vk.vkCmdResetQueryPool(u->commands, u->queries, 2 * u->n_timed, 2);
    u->vk.vkCmdWriteTimestamp(u->commands, VK_AT_COMPUTE, u->queries, 2 * u->n_timed);
  }
  u->vk.vkCmdDispatch(u->commands, (uint32_t)x, (uint32_t)y, (uint32_t)z);
  if (timed) u->vk.vkCmdWriteTimestamp(u->commands, VK_AT_COMPUTE, u->queries, 2 * u->n_timed + 1);
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
  if (!code) code = u->vk.vkAllocateCommandBuffers(u->device, &allocate, &u->commands);
  if (!code) code = u->vk.vkCreateFence(u->device, &fence, NULL, &u->fence);
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
    clean(u);
    if (u->staging) destroy_piece(u, &u->staging->piece);
    free(u->staging);
    destroy_piece(u, &u->nothing);
    for (uint32_t i = 0; i < u->model->n_kernels; i++) {
      vk_kernel *k = &u->kernels[i];
      if (k->pipeline) u->vk.vkDestroyPipeline(u->device, k->pipeline, NULL);
      if (k->layout) u->vk.vkDestroyPipelineLayout(u->device, k->layout, NULL);
      if (k->set_layout) u->vk.vkDestroyDescriptorSetLayout(u->device, k->set_layout, NULL);
    }
    for (uint32_t i = 0; i < u->n_pools; i++) u->vk.vkDestroyDescriptorPool(u->device, u->pools[i], NULL);
    if (u->queries) u->vk.vkDestroyQueryPool(u->device, u->queries, NULL);
    if (u->cache) u->vk.vkDestroyPipelineCache(u->device, u->cache, NULL);
    if (u->fence) u->vk.vkDestroyFence(u->device, u->fence, NULL);
    if (u->command_pool) u->vk.vkDestroyCommandPool(u->device, u->command_pool, NULL);
    u->vk.vkDestroyDevice(u->device, NULL);
  }
  if (u->instance && u->vk.vkDestroyInstance) u->vk.vkDestroyInstance(u->instance, NULL);
  free(u->pools);
  free(u->reads);
  free(u->tensors);
  free(u->used);
  free(u->words);
  free(u->package);
  free(u);
}

const smelt_driver smelt_driver_vulkan = {
    .name = "Vulkan", .codes = CODES, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .shares = shares, .launch = launch, .finish = finish, .flush = flush,
    .clock = take_times, .elapsed = elapsed,
};
