/* fake_driver.c: a device that runs on the CPU, for tests: its memory is behind a handle and its work waits in a queue until it is asked
 * for, as a GPU's does, so what forgets to copy, to wait or to keep its bytes reads something else. FAKE_SHARES=apart or idle: it says
 * that its memory is the host's, which sees it between map and unmap alone, and ends the program where the device has work meanwhile
 * that it must not have; not: its downloads wait for what is before them.
 *   FAKE_LOCKS=1           it has memory that it reaches by itself, =2 the second time not;
 *   FAKE_ORDER=1           it tells stderr what it is asked for, what it does and when somebody waits; what nobody waits for is not done */
#include "driver.h"
#include "rt.h"

size_t fake_allowed = SIZE_MAX; /* bytes that it gives at once; a test may take some away */

size_t fake_denies;             /* the how-manieth memory from here on it does not give; 0: none */
size_t fake_breaks;             /* the how-manieth call of another kind fails; 0: none */
int fake_lost;                  /* and so do all after it */
size_t fake_submits;            /* lists that were started */
size_t fake_allocations;        /* memories that it has given */

enum { MOST_WORK = 256, MOST_ARGS = 64, POISON = 0x5A };

typedef struct {
  size_t bytes;
  uint8_t *data;
  int mapped;
} fake_memory;

typedef struct {
  enum { UPLOAD, DOWNLOAD, COPY, LAUNCH, MARK } kind;
  fake_memory *a, *b, *used[MOST_ARGS]; /* of a launch */
  size_t at, from, bytes;
  const void *source;
  void *target;
  int32_t id;
  int64_t args[MOST_ARGS], groups;
  uint64_t number; /* of a mark */
} fake_work;

typedef struct {
  const smelt_model_desc *model; /* whose kernel table has the functions */
  int32_t shares, mapped;        /* mapped: how many memories are */
  uint32_t number, n_work;
  fake_work work[MOST_WORK];
} fake_unit;

/* What it would have compiled, kept for the next process. */
static int32_t compile(smelt_rt *rt, uint32_t unit) {
  char key[32], made[4096];
  size_t bytes = 0;
  snprintf(key, sizeof key, "fake 1, unit %u", (unsigned)unit);
  for (size_t i = 0; i < sizeof made; i++) made[i] = (char)(i * 7 + unit);
  char *found = smelt_rt_cached(rt, unit, key, &bytes);
  int same = found && bytes == sizeof made && memcmp(found, made, bytes) == 0;
  if (found && !same) return free(found), rt_error(rt, SMELT_DEVICE, "fake: the cache has something else");
  if (!found) smelt_rt_cache(rt, unit, key, made, sizeof made);
  free(found);
  return SMELT_OK;
}

static size_t number_in(const char *name) {
  size_t n = 0;
  for (const char *text = getenv(name); text && *text >= '0' && *text <= '9'; text++) n = 10 * n + (size_t)(*text - '0');
  return n;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  fake_unit *u = calloc(1, sizeof *u);
  if (!u) return rt_error(rt, SMELT_DEVICE, "fake: no memory");
  *state = u;
  u->model = rt->model;
  u->number = unit;
  for (uint32_t i = 0; i < rt->model->n_kernels; i++)
    if (rt->model->kernels[i].unit == (int32_t)unit && !rt->model->kernels[i].fn) return rt_error(rt, SMELT_DEVICE, "fake: a kernel has no function");
  if (getenv("FAKE_BREAKS")) fake_breaks = number_in("FAKE_BREAKS"), fake_lost = getenv("FAKE_LOST") != NULL;
  if (getenv("FAKE_COMPILES") && compile(rt, unit)) return SMELT_DEVICE;
  const char *shares = getenv("FAKE_SHARES");
  u->shares = !shares                  ? SMELT_SHARES_NOT
              : !strcmp(shares, "idle") ? SMELT_SHARES_IDLE
              : !strcmp(shares, "not")  ? SMELT_READS_WAIT
                                        : SMELT_SHARES_APART;
  if (getenv("FAKE_ALLOWS")) fake_allowed = number_in("FAKE_ALLOWS");
  return getenv("FAKE_REFUSES") ? rt_error(rt, SMELT_DEVICE, "fake: told to refuse") : SMELT_OK;
}
static int n_locked; /* memories that have not been given back */
static void close_unit(void *state) {
  if (n_locked) abort();
  free(state);
}
static const char *told(int32_t code) { return (void)code, "see fake_driver.c"; }
static const char *device(const void *state) { return state ? "fake" : "none"; }

enum { BROKEN = -9 };
static int breaks(void) { return fake_breaks && (!--fake_breaks ? fake_breaks = (size_t)fake_lost, 1 : 0); }

static const char *const kinds[] = {"upload", "download", "copy", "launch", "mark"};

static void tell(const fake_unit *u, const char *what, const fake_work *w) {
  char line[300];
  const char *kernel = w && w->kind == LAUNCH ? u->model->kernels[w->id].name : "";
  if (!getenv("FAKE_ORDER")) return;
  int n = snprintf(line, sizeof line, "fake %u: %s %s%s%.200s\n", (unsigned)u->number, what, w ? kinds[w->kind] : "all", *kernel ? " " : "", kernel);
  sm_write_all(2, line, (size_t)n);
}

/* The first n. */
static void run_some(fake_unit *u, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const fake_work *w = &u->work[i];
    tell(u, "did", w);
    switch (w->kind) {
      case UPLOAD: memcpy(w->a->data + w->at, w->source, w->bytes); break;
      case DOWNLOAD: memcpy(w->target, w->a->data + w->at, w->bytes); break;
      case COPY: memcpy(w->a->data + w->at, w->b->data + w->from, w->bytes); break;
      case LAUNCH: u->model->kernels[w->id].fn(w->args, 0, w->groups, 0); break;
      case MARK: break;
    }
  }
  memmove(u->work, u->work + n, (u->n_work - n) * sizeof *u->work);
  u->n_work -= n;
}
static void run_all(fake_unit *u) { run_some(u, u->n_work); }

/* What a device that fails has not done is never done. */
static int32_t finish(void *state) {
  int broken = breaks();
  tell(state, "waited", NULL);
  if (!broken) run_all(state);
  ((fake_unit *)state)->n_work = 0;
  return broken ? BROKEN : 0;
}

/* What the host looks at is not the device's meanwhile. */
static void check(const fake_unit *u, const fake_work *w) {
  int seen = (w->a && w->a->mapped) || (w->b && w->b->mapped) || (u->shares == SMELT_SHARES_IDLE && u->mapped);
  for (size_t i = 0; i < MOST_ARGS; i++) seen |= w->used[i] && w->used[i]->mapped;
  if (seen) abort();
}

static int32_t queue(fake_unit *u, fake_work work, int wait) {
  if (breaks()) return BROKEN;
  check(u, &work);
  tell(u, "asked", &work);
  if (u->n_work == MOST_WORK) run_all(u);
  u->work[u->n_work++] = work;
  if (wait) run_all(u);
  return 0;
}

static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  fake_memory *m = malloc(sizeof *m);
  int denied = fake_denies && !--fake_denies;
  uint8_t *data = m && bytes <= fake_allowed && !denied ? malloc(bytes) : NULL;
  (void)state;
  if (!data) return free(m), *code = -1, NULL;
  for (size_t i = 0; i < bytes; i++) data[i] = contents ? ((const uint8_t *)contents)[i] : POISON;
  *m = (fake_memory){.bytes = bytes, .data = data};
  fake_allocations++;
  return m;
}
static void release(void *state, void *memory) {
  if (((fake_memory *)memory)->mapped) abort();
  run_all(state);
  free(((fake_memory *)memory)->data);
  free(memory);
}

static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait) {
  return queue(state, (fake_work){.kind = UPLOAD, .a = memory, .at = offset, .source = host, .bytes = bytes}, wait);
}
static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  return queue(state, (fake_work){.kind = DOWNLOAD, .a = memory, .at = offset, .target = host, .bytes = bytes}, wait == SMELT_NOW);
}
static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  return queue(state, (fake_work){.kind = COPY, .a = to, .b = from, .at = to_offset, .from = from_offset, .bytes = bytes}, 0);
}

/* A copy, as on a device with memory of its own; nobody can tell, but who looks at it after unmap. */
static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  fake_memory *m = memory;
  fake_unit *u = state;
  (void)writes;
  if (m->mapped || bytes > m->bytes) abort();
  uint8_t *seen = malloc(m->bytes);
  if (!seen) return *code = -2, NULL;
  if (breaks()) return *code = BROKEN, free(seen), NULL;
  tell(u, "waited", NULL);
  run_all(u);
  memcpy(seen, m->data, m->bytes);
  m->mapped = 1, u->mapped++;
  return seen;
}
static int32_t unmap(void *state, void *memory, void *mapped) {
  fake_memory *m = memory;
  fake_unit *u = state;
  int broken = breaks();
  if (!m->mapped) abort();
  if (!broken) run_all(u), memcpy(m->data, mapped, m->bytes);
  m->mapped = 0, u->mapped--;
  free(mapped);
  return broken ? BROKEN : 0;
}
static int32_t shares(const void *state) { return ((const fake_unit *)state)->shares; }

/* A launch with its addresses, which are wrong once the memory is another one. */
static int32_t prepare(const fake_unit *u, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups, fake_work *w) {
  const smelt_kernel_desc *desc = &u->model->kernels[id];
  *w = (fake_work){.kind = LAUNCH, .id = id, .groups = groups};
  if (desc->n_buffers + desc->n_dims > MOST_ARGS) return -3;
  for (int32_t i = 0; i < desc->n_buffers; i++)
    w->used[i] = buffers[i].memory, w->args[i] = buffers[i].memory ? (int64_t)(intptr_t)(((fake_memory *)buffers[i].memory)->data + buffers[i].offset) : 0;
  for (int32_t i = 0; i < desc->n_dims; i++) w->args[desc->n_buffers + i] = dims[i];
  return 0;
}

static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  fake_work w;
  int32_t code = prepare(state, id, buffers, dims, groups, &w);
  return code ? code : queue(state, w, 0);
}

/* ---- points ---- */
static int32_t mark(void *state, uint64_t number) { return queue(state, (fake_work){.kind = MARK, .number = number}, 0); }

static int32_t reach(void *state, uint64_t number) {
  fake_unit *u = state;
  uint32_t n = 0;
  if (breaks()) return BROKEN;
  while (n < u->n_work && !(u->work[n].kind == MARK && u->work[n].number >= number)) n++;
  tell(u, "waited", n < u->n_work ? &u->work[n] : NULL);
  run_some(u, n < u->n_work ? n + 1 : n);
  return 0;
}

/* ---- memory of the host that it reaches by itself ---- */
static void *lock(void *state, size_t bytes) {
  long how = state ? (long)number_in("FAKE_LOCKS") : 0;
  if (!how || (how == 2 && n_locked)) return NULL;
  n_locked++;
  return malloc(bytes);
}
static void unlock(void *state, void *host) {
  if (!state || !n_locked--) abort();
  free(host);
}

/* ---- lists ---- */
typedef struct {
  uint32_t n;
  fake_work work[];
} fake_list;

static int32_t flush(void *state) { return !state || breaks() ? BROKEN : 0; }

static void *record(void *state, const smelt_command *commands, uint32_t n) {
  fake_list *list = getenv("FAKE_FORGETFUL") ? NULL : malloc(sizeof *list + n * sizeof *list->work);
  if (!list) return NULL;
  list->n = n;
  for (uint32_t i = 0; i < n; i++) {
    const smelt_command *c = &commands[i];
    const smelt_place *p = c->buffers;
    if (c->kernel < 0)
      list->work[i] = (fake_work){.kind = COPY, .a = p[0].memory, .b = p[1].memory, .at = p[0].offset, .from = p[1].offset, .bytes = (size_t)c->groups};
    else if (prepare(state, c->kernel, p, c->dims, c->groups, &list->work[i]))
      return free(list), NULL;
  }
  return list;
}

static int32_t submit(void *state, void *list) {
  const fake_list *l = list;
  int32_t code = 0;
  for (uint32_t i = 0; i < l->n && !code; i++) code = queue(state, l->work[i], 0);
  fake_submits++;
  return code;
}

static void forget(void *state, void *list) {
  if (((fake_unit *)state)->n_work) abort(); /* work may be under way */
  free(list);
}

const smelt_driver smelt_driver_fake = {
    .name = "fake", .told = told, .open = open_unit, .close = close_unit, .device = device, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .shares = shares, .launch = launch, .finish = finish,
    .flush = flush, .record = record, .submit = submit, .forget = forget, .mark = mark, .reach = reach, .lock = lock, .unlock = unlock,
};
