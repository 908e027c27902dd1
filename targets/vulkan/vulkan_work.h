/* vulkan_work.h: steps of a unit of Vulkan in; command buffers, submitted in turns, and what they use until they have ended, out.
 *
 * Work is recorded into one of a ring of command buffers and submitted by `flush`, or when somebody waits; the next one is recorded
 * while it is under way. Ranges of memory that the recorded work reads and writes are kept, so that a barrier stands only between
 * steps that depend on each other; it holds for what was submitted before as well. */
#ifndef SMELT_VULKAN_WORK_H
#define SMELT_VULKAN_WORK_H
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
  staging *s = u->slot->staging;
  uint64_t step = u->alignment > 16 ? u->alignment : 16, at = s ? (s->used + step - 1) / step * step : 0;
  if (!s || bytes > s->piece.bytes || at > s->piece.bytes - bytes) {
    s = calloc(1, sizeof *s);
    if (!s) return *code = VK_OUT_OF_HOST_MEMORY, NULL;
    if (!create_piece(u, &s->piece, bytes > STAGING_BYTES ? bytes : STAGING_BYTES, 1, code)) return free(s), NULL;
    s->next = u->slot->staging;
    u->slot->staging = s;
    at = 0;
  }
  s->used = at + bytes;
  *buffer = s->piece.buffer;
  *offset = at;
  return s->piece.host + at;
}

/* ---- recording ---- */
/* Whether there is work that has not ended, recorded or under way. */
static int busy(const vk_unit *u) { return u->serial > u->reached; }

static vk_slot *newest(vk_unit *u) { return &u->ring[u->serial % RING]; }

static void barrier(vk_unit *u, uint32_t to_stage, uint32_t to) {
  vk_memory_barrier all = {.type = VK_MEMORY_BARRIER, .from = VK_SHADER_WRITE | VK_TRANSFER_WRITE, .to = to};
  u->vk.vkCmdPipelineBarrier(u->slot->commands, VK_AT_COMPUTE | VK_AT_TRANSFER, to_stage, 0, 1, &all, 0, NULL, 0, NULL);
}

/* Between all steps before and all after. */
static void full_barrier(vk_unit *u) {
  barrier(u, VK_AT_COMPUTE | VK_AT_TRANSFER, VK_SHADER_READ | VK_SHADER_WRITE | VK_TRANSFER_READ | VK_TRANSFER_WRITE);
  u->n_ranges = 0, u->all_ranges = 0;
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
  int wait = u->all_ranges || u->n_ranges + n > MAX_RANGES;
  for (uint32_t i = 0; i < n && !wait; i++) wait = overlaps(u, ranges[i].buffer, ranges[i].from, ranges[i].to, ranges[i].written);
  if (wait) full_barrier(u);
  for (uint32_t i = 0; i < n && u->n_ranges < MAX_RANGES; i++) u->ranges[u->n_ranges++] = ranges[i];
}

static void record_copy(vk_unit *u, vk_object to, uint64_t to_offset, vk_object from, uint64_t from_offset, uint64_t bytes) {
  used_range ranges[] = {{to, to_offset, to_offset + bytes, 1}, {from, from_offset, from_offset + bytes, 0}};
  vk_buffer_copy copy = {from_offset, to_offset, bytes};
  order(u, ranges, 2);
  u->vk.vkCmdCopyBuffer(u->slot->commands, from, to, 1, &copy);
  u->recorded++;
}

/* ---- what work has used, after its end ---- */
static void bury(vk_unit *u, vk_memory **dead) {
  for (vk_memory *m = *dead, *next; m; m = next) {
    next = m->next;
    destroy_piece(u, &m->piece);
    destroy_piece(u, &m->view);
    free(m);
  }
  *dead = NULL;
}

/* keep: one of the ordinary size stays. */
static void drop_staging(vk_unit *u, staging **all, int keep) {
  for (staging *s = *all, *next; s; s = next) {
    next = s->next;
    if (keep && s->piece.bytes == STAGING_BYTES && !next) {
      s->used = 0;
      *all = s;
      return;
    }
    destroy_piece(u, &s->piece);
    free(s);
    *all = next;
  }
}

/* Staging from which somebody has yet to read goes to what is held. */
static void clean(vk_unit *u, vk_slot *slot, uint64_t serial) {
  int read = 0;
  for (uint32_t i = 0; i < u->n_reads; i++) read |= !u->reads[i].memory && u->reads[i].serial == serial;
  if (read) {
    staging **last = &u->held;
    while (*last) last = &(*last)->next;
    *last = slot->staging, slot->staging = NULL;
  }
  drop_staging(u, &slot->staging, 1);
  bury(u, &slot->dead);
  for (uint32_t i = 0; i < slot->pool; i++) u->vk.vkResetDescriptorPool(u->device, slot->pools[i], 0);
  slot->pool = slot->sets_left = slot->buffers_left = 0;
}

static void destroy_slot(vk_unit *u, vk_slot *slot) {
  bury(u, &slot->dead);
  drop_staging(u, &slot->staging, 0);
  for (uint32_t i = 0; i < slot->n_pools; i++) u->vk.vkDestroyDescriptorPool(u->device, slot->pools[i], NULL);
  if (slot->fence) u->vk.vkDestroyFence(u->device, slot->fence, NULL);
  free(slot->pools);
}

/* ---- submitting and waiting ---- */
/* What is recorded is under way. */
static int32_t flush(void *state) {
  vk_unit *u = state;
  if (!u->recording) return 0;
  vk_slot *slot = newest(u);
  barrier(u, VK_AT_HOST, VK_HOST_READ);
  u->recording = 0;
  int32_t code = u->vk.vkEndCommandBuffer(slot->commands);
  vk_submit submit = {.type = VK_SUBMIT, .n = 1, .commands = &slot->commands};
  return slot->submitted = code ? code : u->vk.vkQueueSubmit(u->queue, 1, &submit, slot->fence);
}

/* Reads that were to be made soon, of what has ended. */
static void deliver(vk_unit *u) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < u->n_reads; i++) {
    const pending_read *r = &u->reads[i];
    if (r->soon && !r->memory && r->serial <= u->reached) memcpy(r->host, r->staged, (size_t)r->bytes);
    else u->reads[left++] = *r;
  }
  u->n_reads = left;
}

/* Until what was submitted up to this recording has ended, which no longer uses anything then. */
static int32_t retire(vk_unit *u, uint64_t serial) {
  int32_t first = u->hung ? SMELT_HANGS : 0;
  while (u->reached < serial && !u->hung) {
    vk_slot *slot = &u->ring[(u->reached + 1) % RING];
    int32_t code = slot->submitted;
    if (!code) code = u->vk.vkWaitForFences(u->device, 1, &slot->fence, 1, smelt_rt_patience());
    if (code == VK_TIMEOUT) {
      u->hung = 1;
      u->n_reads = 0;
      return SMELT_HANGS;
    }
    if (code) u->vk.vkDeviceWaitIdle(u->device);
    int32_t reset = u->vk.vkResetFences(u->device, 1, &slot->fence);
    u->vk.vkResetCommandBuffer(slot->commands, 0);
    first = first ? first : code ? code : reset;
    if (first) u->n_reads = 0; /* what they would read is not there */
    u->reached++;
    deliver(u);
    clean(u, slot, u->reached);
  }
  return first;
}

/* Submit what is recorded, wait for all, and give the reads that were asked for. */
static int32_t wait(vk_unit *u) {
  if (u->hung) return SMELT_HANGS;
  flush(u);
  int32_t code = retire(u, u->serial);
  if (code == SMELT_HANGS) return code;
  for (uint32_t i = 0; i < u->n_reads && !code; i++) {
    const pending_read *r = &u->reads[i];
    memcpy(r->host, r->memory ? r->memory->piece.host + r->offset : r->staged, (size_t)r->bytes);
  }
  u->n_reads = 0;
  u->n_ranges = 0, u->all_ranges = 0;
  drop_staging(u, &u->held, 0);
  bury(u, &u->dead);
  return code;
}

/* The next place of the ring, once what is there has ended. */
static int32_t advance(vk_unit *u) {
  int32_t code = u->serial - u->reached < RING ? 0 : retire(u, u->reached + 1);
  if (code) return code;
  u->serial++;
  u->slot = newest(u);
  u->slot->submitted = 0;
  return 0;
}

static int32_t begin(vk_unit *u) {
  if (u->hung) return SMELT_HANGS;
  if (u->recording) return 0;
  int32_t code = advance(u);
  vk_command_begin begin = {.type = VK_COMMAND_BEGIN, .flags = VK_ONE_TIME};
  if (code) return code;
  code = u->slot->submitted = u->vk.vkBeginCommandBuffer(u->slot->commands, &begin);
  u->recording = !code;
  u->recorded = 0;
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
    r->serial = u->serial;
    r->memory = NULL;
  }
  return 0;
}

/* Before any step that is recorded. */
static int32_t prepare(vk_unit *u) {
  if (u->listing) return 0;
  int32_t code = u->recording && u->recorded >= MAX_RECORDED ? flush(u) : 0;
  if (!code) code = begin(u);
  return code ? code : settle_reads(u);
}

/* ---- points: ends of recordings ---- */
static int32_t mark(void *state, uint64_t number) {
  vk_unit *u = state;
  u->marks[number % MARKS] = u->serial;
  u->marked = number;
  return u->hung ? SMELT_HANGS : 0;
}

static int32_t reach(void *state, uint64_t number) {
  vk_unit *u = state;
  if (u->marked >= MARKS && number <= u->marked - MARKS) number = u->marked - MARKS + 1;
  uint64_t serial = u->marks[number % MARKS];
  flush(u); /* a failure is its slot's */
  return retire(u, serial);
}

/* ---- lists: command buffers that are submitted again and again, also while they are under way ---- */
static void forget(void *state, void *list) {
  vk_unit *u = state;
  vk_slot *slot = list;
  if (u->hung) return;
  if (slot->commands) u->vk.vkFreeCommandBuffers(u->device, u->command_pool, 1, &slot->commands);
  destroy_slot(u, slot);
  free(slot);
}

/* An empty one that is being recorded into; NULL: there is none. */
static vk_slot *begin_list(vk_unit *u) {
  vk_slot *slot = calloc(1, sizeof *slot);
  vk_command_allocate allocate = {.type = VK_COMMAND_ALLOCATE, .pool = u->command_pool, .n = 1};
  vk_command_begin begin = {.type = VK_COMMAND_BEGIN, .flags = VK_SIMULTANEOUS};
  if (!slot) return NULL;
  int32_t code = u->vk.vkAllocateCommandBuffers(u->device, &allocate, &slot->commands);
  if (code) slot->commands = NULL;
  else code = u->vk.vkBeginCommandBuffer(slot->commands, &begin);
  if (code) return forget(u, slot), NULL;
  u->slot = slot, u->listing = 1;
  full_barrier(u);
  return slot;
}

/* Its end; what is recorded next, or was before, is after it or before as well. NULL where that fails, or something has (code). */
static vk_slot *end_list(vk_unit *u, vk_slot *slot, int32_t code) {
  barrier(u, VK_AT_HOST, VK_HOST_READ);
  int32_t ended = u->vk.vkEndCommandBuffer(slot->commands);
  u->slot = newest(u), u->listing = 0;
  u->n_ranges = 0, u->all_ranges = 1;
  return code || ended ? forget(u, slot), NULL : slot;
}

static int32_t submit(void *state, void *list) {
  vk_unit *u = state;
  vk_submit submit = {.type = VK_SUBMIT, .n = 1, .commands = &((vk_slot *)list)->commands};
  int32_t code = u->hung ? SMELT_HANGS : u->n_reads ? prepare(u) : 0;
  if (!code) code = flush(u);
  if (!code) code = advance(u);
  if (code) return code;
  u->n_ranges = 0, u->all_ranges = 1;
  return u->slot->submitted = u->vk.vkQueueSubmit(u->queue, 1, &submit, u->slot->fence);
}
#endif
