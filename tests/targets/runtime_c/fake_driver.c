/* fake_driver.c: a device that runs on the CPU, for tests: its memory is behind a handle and its work waits in a queue until it is asked
 * for, as a GPU's does, so what forgets to copy, to wait or to keep its bytes reads something else. */
#include "driver.h"
#include "rt.h"

size_t fake_allowed = SIZE_MAX; /* bytes that it gives at once; a test may take some away */

enum { MOST_WORK = 64, MOST_ARGS = 16, POISON = 0x5A };

typedef struct {
  size_t bytes;
  uint8_t *data;
} fake_memory;

typedef struct {
  enum { UPLOAD, DOWNLOAD, COPY, LAUNCH } kind;
  fake_memory *a, *b;
  size_t at, from, bytes;
  const void *source;
  void *target;
  int32_t id;
  int64_t args[MOST_ARGS], groups;
} fake_work;

typedef struct {
  const smelt_model_desc *model; /* whose kernel table has the functions */
  uint32_t n_work;
  fake_work work[MOST_WORK];
} fake_unit;

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  fake_unit *u = calloc(1, sizeof *u);
  if (!u) return rt_error(rt, SMELT_DEVICE, "fake: no memory");
  *state = u;
  u->model = rt->model;
  for (uint32_t i = 0; i < rt->model->n_kernels; i++)
    if (rt->model->kernels[i].unit == (int32_t)unit && !rt->model->kernels[i].fn) return rt_error(rt, SMELT_DEVICE, "fake: a kernel has no function");
  return getenv("FAKE_REFUSES") ? rt_error(rt, SMELT_DEVICE, "fake: told to refuse") : SMELT_OK;
}
static void close_unit(void *state) { free(state); }
static const char *device(const void *state) { return state ? "fake" : "none"; }

static int32_t finish(void *state) {
  fake_unit *u = state;
  for (uint32_t i = 0; i < u->n_work; i++) {
    const fake_work *w = &u->work[i];
    switch (w->kind) {
      case UPLOAD: memcpy(w->a->data + w->at, w->source, w->bytes); break;
      case DOWNLOAD: memcpy(w->target, w->a->data + w->at, w->bytes); break;
      case COPY: memcpy(w->a->data + w->at, w->b->data + w->from, w->bytes); break;
      case LAUNCH: u->model->kernels[w->id].fn(w->args, 0, w->groups); break;
    }
  }
  u->n_work = 0;
  return 0;
}

static int32_t queue(fake_unit *u, fake_work work, int wait) {
  if (u->n_work == MOST_WORK) finish(u);
  u->work[u->n_work++] = work;
  return wait ? finish(u) : 0;
}

static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  fake_memory *m = malloc(sizeof *m);
  uint8_t *data = m && bytes <= fake_allowed ? malloc(bytes) : NULL;
  (void)state;
  if (!data) return free(m), *code = -1, NULL;
  for (size_t i = 0; i < bytes; i++) data[i] = contents ? ((const uint8_t *)contents)[i] : POISON;
  *m = (fake_memory){bytes, data};
  return m;
}
static void release(void *state, void *memory) {
  finish(state);
  free(((fake_memory *)memory)->data);
  free(memory);
}

static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait) {
  return queue(state, (fake_work){.kind = UPLOAD, .a = memory, .at = offset, .source = host, .bytes = bytes}, wait);
}
static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  return queue(state, (fake_work){.kind = DOWNLOAD, .a = memory, .at = offset, .target = host, .bytes = bytes}, wait);
}
static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  return queue(state, (fake_work){.kind = COPY, .a = to, .b = from, .at = to_offset, .from = from_offset, .bytes = bytes}, 0);
}

/* A copy, as on a device with memory of its own. */
static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  uint8_t *seen = malloc(bytes);
  (void)writes;
  if (!seen) return *code = -2, NULL;
  download(state, memory, 0, seen, bytes, 1);
  return seen;
}
static int32_t unmap(void *state, void *memory, void *mapped) {
  int32_t code = upload(state, memory, 0, mapped, ((fake_memory *)memory)->bytes, 1);
  free(mapped);
  return code;
}

static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  fake_unit *u = state;
  const smelt_kernel_desc *desc = &u->model->kernels[id];
  fake_work w = {.kind = LAUNCH, .id = id, .groups = groups};
  if (desc->n_buffers + desc->n_dims > MOST_ARGS) return -3;
  for (int32_t i = 0; i < desc->n_buffers; i++)
    w.args[i] = buffers[i].memory ? (int64_t)(intptr_t)(((fake_memory *)buffers[i].memory)->data + buffers[i].offset) : 0;
  for (int32_t i = 0; i < desc->n_dims; i++) w.args[desc->n_buffers + i] = dims[i];
  return queue(u, w, 0);
}

const smelt_driver smelt_driver_fake = {
    .name = "fake", .codes = "see fake_driver.c", .open = open_unit, .close = close_unit, .device = device, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .launch = launch, .finish = finish,
};
