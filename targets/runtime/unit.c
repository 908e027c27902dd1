/* unit.c: launches, copies and transfers at a unit besides the CPU in; calls of its driver, counted, as few as it allows, out.
 *
 * Launches and copies wait until the host has to look, or to write. A driver that records gets such a part of a run as one list
 * when it comes the second time: a part is the same when its kernels, memory and sizes are. A first time it goes call by call, as
 * everything does at a driver without lists, and is then started at once by `flush`. */
#include "unit.h"

enum { MOST_WORDS = 1 << 20, STAGING_BYTES = 1 << 16, COPY = -1, NO_KERNEL = -1, PATIENCE = 4, NO_MEMORY = -1, RELAY_BYTES = 1 << 20 };

static void look_at_kernels(rt_unit *u, uint32_t number) {
  const char *why = NULL;
  int32_t chains = u->driver->chains ? u->driver->chains(u->state) : 8;
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    if ((uint32_t)u->model->kernels[i].unit != number) continue;
    if (u->model->kernels[i].n_chains) u->chains = chains;
    if (!rt_unit_form(u, (int32_t)i, &why)) continue;
    u->session->traffic.kernel_forms++;
    u->session->traffic.lesser_forms += *why != 0;
  }
}

int32_t rt_unit_open(rt_unit *u, smelt_rt *rt, uint32_t number) {
  u->driver = rt->model->units[number - 1].driver;
  u->session = rt->session;
  u->model = rt->model;
  u->refusals = u->driver->record ? 0 : PATIENCE;
  u->failed_kernel = NO_KERNEL;
  const char *steps = getenv("SMELT_DEVICE_STEPS");
  u->steps = steps && *steps && strcmp(steps, "0") != 0;
  int32_t status = u->driver->open(rt, number, &u->state);
  u->shares = !status && u->driver->shares ? u->driver->shares(u->state) : SMELT_SHARES_NOT;
  if (u->shares == SMELT_READS_WAIT) u->shares = SMELT_SHARES_NOT, u->reads_wait = 1;
  if (!status) look_at_kernels(u, number);
  return status;
}

const char *rt_unit_form(const rt_unit *u, int32_t kernel, const char **why) {
  return u->state && u->driver->form ? u->driver->form(u->state, kernel, why) : NULL;
}

/* What a call of the driver told. */
static int32_t heard(rt_unit *u, int32_t code) {
  if (code == SMELT_HANGS) u->hung = u->session->hung = 1;
  return code;
}

/* ---- what waits ---- */
static void put(rt_unit *u, const void *from, size_t n) {
  rt_part *p = &u->pending;
  memcpy(p->words + p->n_words, from, n * sizeof *p->words);
  p->n_words += n;
}

/* Room for n words more; 0: the system has none, or they are too many to wait. */
static int has_room(rt_unit *u, size_t n) {
  rt_part *p = &u->pending;
  size_t wanted = p->n_words + n, room = p->room ? p->room : 256;
  if (wanted <= p->room) return 1;
  if (wanted > MOST_WORDS) return 0;
  while (room < wanted) room *= 2;
  int64_t *words = realloc(p->words, room * sizeof *words);
  if (!words) return 0;
  p->words = words, p->room = room;
  return 1;
}

static int32_t n_places(const rt_unit *u, int32_t kernel) { return kernel == COPY ? 2 : u->model->kernels[kernel].n_buffers; }
static int32_t n_dims(const rt_unit *u, int32_t kernel) { return kernel == COPY ? 0 : u->model->kernels[kernel].n_dims; }

/* A command as words: kernel, groups, memory and offset of each buffer, dims. */
static void push(rt_unit *u, int32_t kernel, const smelt_place *places, const int64_t *dims, int64_t groups) {
  int64_t head[] = {kernel, groups};
  put(u, head, 2);
  for (int32_t i = 0; i < n_places(u, kernel); i++) {
    int64_t at[] = {(int64_t)(intptr_t)places[i].memory, (int64_t)places[i].offset};
    put(u, at, 2);
  }
  if (n_dims(u, kernel)) put(u, dims, (size_t)n_dims(u, kernel));
  if (!u->pending.n_commands++) u->pending.first = kernel;
  u->pending.last = kernel;
}

/* So that a failure of which the driver learns at the end can tell what it may have been about. */
static void note(rt_unit *u, uint32_t n, int32_t first, int32_t last) {
  if (!u->started) u->first_started = first;
  u->started += n;
  u->last_started = last;
}

static int32_t give(rt_unit *u, const smelt_command *c) {
  u->queued = u->busy = 1;
  u->session->traffic.launches += c->kernel != COPY;
  if (!u->driver->flush) u->session->traffic.submits++;
  int32_t code = c->kernel == COPY
                   ? u->driver->copy(u->state, c->buffers[0].memory, (size_t)c->buffers[0].offset, c->buffers[1].memory,
                                     (size_t)c->buffers[1].offset, (size_t)c->groups)
                   : u->driver->launch(u->state, c->kernel, c->buffers, c->dims, c->groups);
  note(u, 1, c->kernel, c->kernel);
  if (!code && u->steps) code = u->driver->finish(u->state);
  if (code) u->failed_kernel = c->kernel;
  return heard(u, code);
}

/* ---- lists ---- */
/* The commands of a part as the driver reads them: one block, to be freed; NULL: no memory. */
static smelt_command *spread(const rt_unit *u, const rt_part *p) {
  size_t head = p->n_commands * sizeof(smelt_command), places = 0;
  head = (head + 15) / 16 * 16;
  for (size_t at = 0; at < p->n_words;) {
    int32_t kernel = (int32_t)p->words[at], n = n_places(u, kernel);
    places += (size_t)n;
    at += 2 + 2 * (size_t)n + (size_t)n_dims(u, kernel);
  }
  smelt_command *all = malloc(head + places * sizeof(smelt_place) + 1);
  smelt_place *place = (smelt_place *)((char *)all + head);
  if (!all) return NULL;
  for (size_t at = 0, k = 0; at < p->n_words; k++) {
    int32_t kernel = (int32_t)p->words[at];
    all[k] = (smelt_command){.kernel = kernel, .groups = p->words[at + 1], .buffers = place};
    at += 2;
    for (int32_t i = 0; i < n_places(u, kernel); i++, at += 2)
      *place++ = (smelt_place){(void *)(intptr_t)p->words[at], (uint64_t)p->words[at + 1]};
    all[k].dims = p->words + at;
    at += (size_t)n_dims(u, kernel);
  }
  return all;
}

static uint64_t hash_of(const rt_part *p) {
  uint64_t hash = p->n_words;
  for (size_t i = 0; i < p->n_words; i++) hash = (hash ^ (uint64_t)p->words[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
  return hash;
}

/* The part that is like what waits, or the one that it is to take the place of. */
static rt_part *find(rt_unit *u, int *same) {
  const rt_part *p = &u->pending;
  rt_part *oldest = &u->kept[0];
  *same = 0;
  for (uint32_t i = 0; i < RT_PARTS; i++) {
    rt_part *k = &u->kept[i];
    if (k->n_words == p->n_words && k->hash == p->hash && memcmp(k->words, p->words, p->n_words * sizeof *p->words) == 0) return *same = 1, k;
    if (k->used < oldest->used) oldest = k;
  }
  return oldest;
}

static int32_t wait_for(rt_unit *u) {
  u->queued = u->busy = 0, u->staged = 0;
  u->ended = u->points;
  u->session->traffic.waits++;
  int32_t code = heard(u, u->driver->finish(u->state));
  if (!code) u->started = 0;
  return code;
}

/* In the middle of something else: what it finds is told at the end of the run. */
static int32_t wait_early(rt_unit *u) {
  int32_t code = wait_for(u);
  if (!u->late) u->late = code;
  return code;
}

/* Only once nothing is under way. */
static void drop(rt_unit *u, rt_part *p) {
  if (p->list) {
    if (u->busy) wait_early(u);
    u->driver->forget(u->state, p->list);
    p->list = NULL;
  }
  p->n_words = 0, p->n_commands = 0, p->used = 0, p->refused = 0;
}

static int32_t start(rt_unit *u) {
  if (!u->queued) return 0;
  u->queued = 0;
  if (!u->driver->flush) return 0;
  u->session->traffic.submits++;
  return u->driver->flush(u->state);
}

static int32_t one_by_one(rt_unit *u, const smelt_command *all, uint32_t n) {
  int32_t code = 0;
  for (uint32_t i = 0; i < n && !code; i++) code = give(u, &all[i]);
  return code ? code : start(u);
}

static int32_t submit(rt_unit *u, const rt_part *p) {
  u->busy = 1, u->queued = 0; /* what was asked for before begins with it */
  note(u, p->n_commands, p->first, p->last);
  u->session->traffic.submits++, u->session->traffic.launches += p->n_launches;
  return u->driver->submit(u->state, p->list);
}

/* A part without a list: call by call, or, when it comes again, as a list from now on. */
static int32_t spell_out(rt_unit *u, rt_part *p, int again) {
  smelt_command *all = spread(u, p);
  void *chained = NULL;
  if (!all) return NO_MEMORY;
  uint32_t n = u->chains ? rt_chain(u->model, all, p->n_commands, u->chains, &chained) : p->n_commands;
  p->n_launches = 0;
  for (uint32_t i = 0; i < n; i++) p->n_launches += all[i].kernel != COPY;
  if (again && !p->refused && u->driver->record) {
    p->list = u->driver->record(u->state, all, n);
    p->refused = !p->list;
    u->refusals = p->list ? -1 : u->refusals + (u->refusals >= 0);
  }
  int32_t code = p->list ? submit(u, p) : one_by_one(u, all, n);
  rt_chain_free(chained);
  free(all);
  return code;
}

/* What waits is with the driver. */
static int32_t flush(rt_unit *u) {
  rt_part *p = &u->pending;
  int same = 0;
  if (!p->n_commands) return 0;
  p->hash = hash_of(p);
  rt_part *known = find(u, &same);
  known->used = ++u->clock;
  int32_t code = !same ? spell_out(u, p, 0) : known->list ? submit(u, known) : spell_out(u, known, 1);
  if (!same) {
    drop(u, known);
    rt_part old = *known;
    *known = *p;
    known->used = u->clock;
    *p = old;
  }
  p->n_words = 0, p->n_commands = 0;
  return heard(u, code);
}

/* The same, and what the driver has been given without being told to start. */
static int32_t begin(rt_unit *u) {
  int32_t code = flush(u);
  return code ? code : start(u);
}

static void drop_all(rt_unit *u) {
  for (uint32_t i = 0; i < RT_PARTS; i++) drop(u, &u->kept[i]);
}

/* ---- work ---- */
static int32_t add(rt_unit *u, smelt_command c) {
  int alone = (u->refusals >= PATIENCE && !u->chains) || u->session->watched || u->steps;
  if (alone || !has_room(u, 2 + 2 * (size_t)n_places(u, c.kernel) + (size_t)n_dims(u, c.kernel))) {
    int32_t code = flush(u);
    return code ? code : give(u, &c);
  }
  push(u, c.kernel, c.buffers, c.dims, c.groups);
  return 0;
}

int32_t rt_unit_launch(rt_unit *u, int32_t kernel, const smelt_place *places, const int64_t *dims, int64_t groups) {
  return add(u, (smelt_command){.kernel = kernel, .groups = groups, .buffers = places, .dims = dims});
}

int32_t rt_unit_copy(rt_unit *u, smelt_place to, smelt_place from, size_t bytes) {
  smelt_place both[] = {to, from};
  return add(u, (smelt_command){.kernel = COPY, .groups = (int64_t)bytes, .buffers = both});
}

/* ---- transfers ---- */
/* Few bytes that may change before the unit has read them: where they stay. NULL: there is no room. */
static const void *stage(rt_unit *u, const void *host, size_t bytes) {
  if (bytes > STAGING_BYTES) return NULL;
  if (!u->staging && !(u->staging = malloc(STAGING_BYTES))) return NULL;
  if (u->staged + bytes > STAGING_BYTES && wait_early(u)) return NULL;
  char *at = u->staging + u->staged;
  u->staged += (bytes + 63) / 64 * 64;
  return memcpy(at, host, bytes);
}

int32_t rt_unit_upload(rt_unit *u, smelt_place to, const void *host, size_t bytes, int stays) {
  int32_t code = flush(u);
  if (code) return code;
  const void *from = stays ? host : stage(u, host, bytes);
  u->session->traffic.uploads++, u->session->traffic.uploaded_bytes += bytes;
  u->busy = u->queued = 1;
  return heard(u, u->driver->upload(u->state, to.memory, (size_t)to.offset, from ? from : host, bytes, !from));
}

/* Without starting what does not wait. */
static int32_t download(rt_unit *u, smelt_place from, void *host, size_t bytes, int wait) {
  int32_t code = wait == SMELT_NOW ? begin(u) : flush(u);
  if (code) return code;
  u->session->traffic.reads++, u->session->traffic.read_bytes += bytes;
  u->session->traffic.waits += wait == SMELT_NOW;
  u->busy = 1;
  if (wait == SMELT_SOON) u->queued = 1;
  return heard(u, u->driver->download(u->state, from.memory, (size_t)from.offset, host, bytes, wait));
}

int32_t rt_unit_ask(rt_unit *u, smelt_place from, void *host, size_t bytes) { return download(u, from, host, bytes, SMELT_SOON); }

int32_t rt_unit_download(rt_unit *u, smelt_place from, void *host, size_t bytes, int wait) {
  int32_t code = download(u, from, host, bytes, wait);
  return code || wait != SMELT_SOON ? code : heard(u, start(u));
}

void *rt_unit_map(rt_unit *u, void *memory, size_t bytes, int writes, int32_t *code) {
  if ((*code = begin(u))) return NULL;
  if (!u->shares) u->session->traffic.reads++, u->session->traffic.read_bytes += bytes;
  u->session->traffic.waits += u->busy || !u->shares;
  void *host = u->driver->map(u->state, memory, bytes, writes, code);
  heard(u, *code);
  if (host) u->queued = u->busy = 0, u->staged = 0, u->started = 0, u->ended = u->points;
  return host;
}

int32_t rt_unit_unmap(rt_unit *u, void *memory, void *mapped, size_t bytes, int writes) {
  if (writes && !u->shares) u->session->traffic.uploads++, u->session->traffic.uploaded_bytes += bytes;
  u->busy = 1;
  return heard(u, u->driver->unmap(u->state, memory, mapped));
}

int32_t rt_unit_start(rt_unit *u) { return heard(u, begin(u)); }

/* ---- points ---- */
int32_t rt_unit_mark(rt_unit *u, uint64_t *point) {
  int32_t code = flush(u);
  *point = ++u->points;
  return code || !u->driver->mark ? code : heard(u, u->driver->mark(u->state, *point));
}

/* What was asked for behind it begins as well, so that the unit has work when the host goes on. */
int32_t rt_unit_reach(rt_unit *u, uint64_t point) {
  if (point <= u->ended) return 0;
  int32_t code = flush(u);
  if (code) return code;
  if (!u->driver->reach) return wait_for(u);
  u->queued = 0;
  u->session->traffic.waits++;
  code = heard(u, u->driver->reach(u->state, point));
  if (!code) u->ended = point;
  return code;
}

int32_t rt_unit_relays(rt_unit *u) {
  for (int i = 0; i < 2; i++)
    if (!rt_beside_extend(u, &u->relays[i].memory, RELAY_BYTES)) return 0;
  return 1;
}

/* Bytes of a unit, or of the host, to where they wait for another one. */
static int32_t fill(rt_unit *u, smelt_place from, size_t at, char *to, size_t n) {
  uint64_t came = 0;
  if (!u) return memcpy(to, (const char *)from.memory + from.offset + at, n), 0;
  int32_t code = rt_unit_ask(u, (smelt_place){from.memory, from.offset + at}, to, n);
  if (!code) code = rt_unit_mark(u, &came);
  return code ? code : rt_unit_reach(u, came);
}

/* In pieces: one goes up while the next comes down. */
int32_t rt_unit_relay(rt_unit *to_unit, smelt_place to, rt_unit *from_unit, smelt_place from, size_t bytes, rt_unit **failed) {
  int32_t code = 0;
  *failed = to_unit;
  for (size_t done = 0, n; done < bytes && !code; done += n) {
    rt_relay *relay = &to_unit->relays[to_unit->turn++ % 2];
    n = bytes - done < RELAY_BYTES ? bytes - done : RELAY_BYTES;
    if ((code = rt_unit_reach(to_unit, relay->sent))) break;
    if ((code = fill(from_unit, from, done, relay->memory.block.data, n))) return *failed = from_unit, code;
    code = rt_unit_upload(to_unit, (smelt_place){to.memory, to.offset + done}, relay->memory.block.data, n, 1);
    if (!code) code = rt_unit_mark(to_unit, &relay->sent);
  }
  return code;
}

int32_t rt_unit_finish(rt_unit *u) {
  int32_t code = begin(u), waited = u->busy ? wait_for(u) : 0, late = u->late;
  u->late = 0;
  return late ? late : code ? code : waited;
}

/* A device without events of its own is no failure: there are the host's times then. */
void rt_unit_clock(rt_unit *u, int on) {
  if (!u->driver->clock || (!on && !u->clocked)) return;
  int32_t code = u->driver->clock(u->state, on);
  u->clocked = on && !code;
}

int64_t rt_unit_elapsed(rt_unit *u) { return u->clocked ? u->driver->elapsed(u->state) : -1; }

void rt_unit_forget(rt_unit *u) {
  u->late = 0;
  u->pending.n_words = 0, u->pending.n_commands = 0;
  if (u->busy) wait_for(u);
  u->started = 0;
}

/* ---- memory ---- */
void rt_beside_free(rt_unit *u, rt_beside *beside) {
  if (beside->locked) u->driver->unlock(u->state, beside->block.data);
  else rt_block_free(&beside->block);
  *beside = (rt_beside){0};
}

static int locked_room(rt_unit *u, rt_beside *beside, uint64_t bytes) {
  void *at = bytes <= SIZE_MAX / 2 ? u->driver->lock(u->state, (size_t)bytes) : NULL;
  if (!at) return 0;
  u->session->allocations++;
  *beside = (rt_beside){.block = {.data = at, .capacity = bytes}, .locked = 1};
  return 1;
}

/* What is locked is so while the driver gives such memory; what is not stays so, and may then grow where it is. */
int rt_beside_extend(rt_unit *u, rt_beside *beside, uint64_t bytes) {
  rt_beside more = {0};
  if (beside->block.data && bytes <= beside->block.capacity) return 1;
  if (!u->driver->lock || (beside->block.data && !beside->locked)) return rt_block_extend(u->session->views, &beside->block, bytes);
  uint64_t room = beside->block.capacity + beside->block.capacity / 2;
  if (!(room > bytes && locked_room(u, &more, room)) && !locked_room(u, &more, bytes) && !rt_block_extend(u->session->views, &more.block, bytes)) return 0;
  if (beside->block.data) memcpy(more.block.data, beside->block.data, (size_t)beside->block.capacity);
  rt_beside_free(u, beside);
  *beside = more;
  return 1;
}

void *rt_unit_allocate(rt_unit *u, size_t bytes, const void *contents, int32_t *code) {
  void *memory = u->driver->allocate(u->state, bytes, contents, code);
  u->session->allocations += memory != NULL;
  return memory;
}

/* Another piece of memory may come to have the same handle, so no list may be found by it any more. */
void rt_unit_release(rt_unit *u, void *memory) {
  int32_t code = flush(u);
  if (!u->late) u->late = code;
  drop_all(u);
  u->driver->release(u->state, memory);
}

void rt_unit_close(rt_unit *u) {
  if (u->state) {
    rt_unit_forget(u);
    drop_all(u);
    for (int i = 0; i < 2 && !u->session->hung; i++) rt_beside_free(u, &u->relays[i].memory);
    u->driver->close(u->state);
  }
  free(u->pending.words);
  for (uint32_t i = 0; i < RT_PARTS; i++) free(u->kept[i].words);
  if (!u->hung) free(u->staging);
}
