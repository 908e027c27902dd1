/* streams.c: streams over model.c and functions: order, overlap, back-pressure, failures, refusals, memory, ends; prints OK.
 *
 * usage: probe BUNDLE_DIR */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rt.h"

static int failures;
#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      failures++;                                                                    \
      printf("line %d: %s [%s]\n", __LINE__, #condition, smelt_error(NULL));         \
    }                                                                                \
  } while (0)

enum { M = 5, MOST_ROWS = 70, ITEMS = 300, FOR_EVER = -1, SECONDS = 60 };

#ifdef SMELT_TEST_ALLOC
static _Atomic long allowed = 1L << 40; /* how often the system still gives memory */
void *smelt_test_map(size_t bytes);
void smelt_test_unmap(void *at, size_t bytes);
void *smelt_test_map(size_t bytes) { return atomic_fetch_sub(&allowed, 1) > 0 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL; }
void smelt_test_unmap(void *at, size_t bytes) { (void)bytes, free(at); }
#endif

static int said(const char *part) { return strstr(smelt_error(NULL), part) != NULL; }

static DLTensor floats(void *data, int32_t rank, int64_t *shape) {
  return (DLTensor){.data = data, .device = {1, 0}, .ndim = rank, .dtype = {2, 32, 1}, .shape = shape};
}

/* ---- items: x[n, M], filled by the item's number, and y[M] ---- */
static const float w[4] = {1, -2, 3, -4};
static int64_t rows_of(int item) { return item % 9 == 8 ? 0 : 1 + item * 7 % 12; } /* none of those that misbehave */
static float x_at(int item, int64_t k) { return (float)((item + k) % 11) - 5; }
static float y_at(int item, int64_t j) { return (float)((item + j) % 3); }

static smelt_status push(smelt_stream *stream, int item, int64_t n, int64_t wait_ns) {
  float x[MOST_ROWS * M + 1], y[M];
  int64_t xs[] = {n, M}, ys[] = {M};
  for (int64_t k = 0; k < n * M; k++) x[k] = x_at(item, k);
  for (int64_t j = 0; j < M; j++) y[j] = y_at(item, j);
  DLTensor in[] = {floats(x, 2, xs), floats(y, 1, ys)};
  smelt_status status = smelt_push(stream, in, 2, wait_ns);
  memset(x, 0, sizeof x); /* the stream has copies */
  return status;
}

/* Is it the second of two models' z, whose x is the first one's z? */
static int right(int item, int64_t n, const DLTensor *z) {
  if (z->ndim != 2 || z->shape[0] != n || z->shape[1] != M) return 0;
  for (int64_t k = 0; k < n * M; k++) {
    float add = y_at(item, k % M) + w[k % M % 4];
    if (((const float *)z->data)[k] != 2 * (2 * x_at(item, k) + add) + add) return 0;
  }
  return 1;
}

/* ---- two models one after the other ---- */
static const smelt_wire pushed_wires[] = {{-1, 0}, {-1, 1}}, second_wires[] = {{0, 0}, {-1, 1}}, z_of_second[] = {{1, 0}};

static smelt_stream *two_models(smelt_session *a, smelt_session *b, int32_t depth) {
  smelt_stage stages[2];
  smelt_stream *stream = NULL;
  EXPECT(smelt_as_stage(a, &stages[0]) == SMELT_OK && smelt_as_stage(b, &stages[1]) == SMELT_OK);
  stages[0].inputs = pushed_wires, stages[1].inputs = second_wires;
  const smelt_stream_options options = {.struct_size = sizeof options, .stage_size = sizeof *stages, .stages = stages, .n_stages = 2,
                                        .n_pushed = 2, .popped = z_of_second, .n_popped = 1, .depth = depth};
  EXPECT(smelt_start_stream(&options, &stream) == SMELT_OK);
  return stream;
}

/* Pops what is there before it pushes more, as a program with one thread does. */
static void test_order(smelt_session *a, smelt_session *b, int32_t depth) {
  smelt_stream *stream = two_models(a, b, depth);
  DLTensor z;
  int popped = 0;
  for (int item = 0; item < ITEMS; item++)
    while (push(stream, item, rows_of(item), 0) == SMELT_AGAIN) {
      EXPECT(said("all slots are taken"));
      EXPECT(smelt_pop(stream, &z, 1, FOR_EVER) == SMELT_OK && right(popped, rows_of(popped), &z));
      popped++;
    }
  EXPECT(popped >= ITEMS - depth && popped < ITEMS);
  EXPECT(smelt_finish_stream(stream) == SMELT_OK);
  EXPECT(push(stream, 0, 1, FOR_EVER) == SMELT_INVALID && said("after smelt_finish_stream"));
  for (smelt_status status; (status = smelt_pop(stream, &z, 1, FOR_EVER)) != SMELT_END; popped++)
    EXPECT(status == SMELT_OK && right(popped, rows_of(popped), &z));
  EXPECT(popped == ITEMS);
  EXPECT(smelt_pop(stream, &z, 1, 0) == SMELT_END);
  smelt_stage_stats stats;
  EXPECT(smelt_ask_stage(stream, 1, &stats) == SMELT_OK && stats.items == ITEMS && !stats.failed && stats.bytes && stats.busy_ns);
  smelt_end_stream(stream);
}

/* A push in one thread and a pop in another. */
static void *push_all(void *stream) {
  for (int item = 0; item < ITEMS; item++)
    if (push(stream, item, rows_of(item), FOR_EVER)) return NULL;
  smelt_finish_stream(stream);
  return stream;
}
static void test_threads(smelt_session *a, smelt_session *b) {
  smelt_stream *stream = two_models(a, b, 3);
  sm_thread pusher;
  void *all = NULL;
  DLTensor z;
  int popped = 0;
  EXPECT(pthread_create(&pusher, NULL, push_all, stream) == 0);
  for (smelt_status status; (status = smelt_pop(stream, &z, 1, FOR_EVER)) != SMELT_END; popped++)
    EXPECT(status == SMELT_OK && right(popped, rows_of(popped), &z));
  pthread_join(pusher, &all);
  EXPECT(all && popped == ITEMS);
  smelt_end_stream(stream);
}

/* The failure of an item is that item's alone; what comes after does not see it. */
static void test_failures(smelt_session *a, smelt_session *b) {
  enum { FAILS = 13 /* rows: no text */ };
  smelt_stream *stream = two_models(a, b, 4);
  DLTensor z;
  for (int item = 0; item < 20; item++) {
    int64_t n = item % 3 == 1 ? FAILS : rows_of(item);
    EXPECT(push(stream, item, n, FOR_EVER) == SMELT_OK);
    smelt_status status = smelt_pop(stream, &z, 1, FOR_EVER);
    if (n == FAILS) EXPECT(status == SMELT_UNSUPPORTED && said("stage 'probe': model 'probe' failed with status 2 and gave no reason"));
    else EXPECT(status == SMELT_OK && right(item, n, &z));
  }
  for (size_t i = 0; i < 2; i++) {
    smelt_stage_stats stats;
    EXPECT(smelt_ask_stage(stream, i, &stats) == SMELT_OK && stats.items == 20 && stats.failed == 7);
  }
  int64_t xs[] = {2, M}, ys[] = {M - 1};
  float x[2 * M] = {0}, y[M] = {0};
  DLTensor in[] = {floats(x, 2, xs), floats(y, 1, ys)};
  EXPECT(smelt_push(stream, in, 2, 0) == SMELT_OK && smelt_pop(stream, &z, 1, FOR_EVER) == SMELT_SHAPE && said("input 'y' axis 0: got 4"));
  smelt_end_stream(stream);
}

/* ---- stages of functions ---- */
typedef struct {
  _Atomic int runs, gate;
  smelt_status status;
  int64_t shape[2], strides[2];
  float value;
  DLTensor gives;
} function;

static const char *refuses(void *context) { return ((function *)context)->runs ? "told to fail" : NULL; }

/* Gives what the function says, or a scalar: the sum of its inputs' first values, and 1. */
static smelt_status call(void *context, const DLTensor *in, size_t n_in, DLTensor *out, size_t n_out) {
  function *f = context;
  atomic_fetch_add(&f->runs, 1);
  if (f->status) return f->status;
  f->value = 1;
  for (size_t i = 0; i < n_in; i++) f->value += *(const float *)in[i].data;
  for (size_t i = 0; i < n_out; i++) out[i] = f->gives.dtype.bits ? f->gives : floats(&f->value, 0, NULL);
  return SMELT_OK;
}
static smelt_status call_gated(void *context, const DLTensor *in, size_t n_in, DLTensor *out, size_t n_out) {
  function *f = context;
  while (!atomic_load(&f->gate)) sm_sleep(100000);
  return call(context, in, n_in, out, n_out);
}

static const smelt_stage_calls plain = {.struct_size = sizeof plain, .run = call, .error = refuses};
static const smelt_stage_calls gated = {.struct_size = sizeof gated, .run = call_gated};
static const smelt_wire from_push[] = {{-1, 0}}, from_first[] = {{0, 0}};

static smelt_stream *open_functions(const smelt_stage *stages, uint32_t n, const smelt_wire *popped, uint32_t n_popped, int32_t depth) {
  smelt_stream *stream = NULL;
  const smelt_stream_options options = {.struct_size = sizeof options, .stage_size = sizeof *stages, .stages = stages, .n_stages = n,
                                        .n_pushed = 1, .popped = popped, .n_popped = n_popped, .depth = depth};
  EXPECT(smelt_start_stream(&options, &stream) == SMELT_OK);
  return stream;
}
static smelt_status push_number(smelt_stream *stream, float value, int64_t wait_ns) {
  DLTensor in = floats(&value, 0, NULL);
  return smelt_push(stream, &in, 1, wait_ns);
}
static float number(const DLTensor *t) { return t->ndim ? -1 : *(const float *)t->data; }

/* Both wait for the other to be at work, on the item before or after: one after the other could not. */
static _Atomic int meeting[2];
static smelt_status meet(void *context, const DLTensor *in, size_t n_in, DLTensor *out, size_t n_out) {
  int self = *(const int *)context;
  uint64_t end = sm_now() + (uint64_t)SECONDS * 1000000000u;
  int round = atomic_fetch_add(&meeting[self], 1) + 1, other = self ? round + 1 : round - 1; /* the second is an item behind */
  for (; atomic_load(&meeting[!self]) < other; sm_yield())
    if (sm_now() > end) return SMELT_INFRA;
  (void)n_in, (void)n_out;
  out[0] = in[0];
  return SMELT_OK;
}
static void test_overlap(void) {
  enum { ROUNDS = 50 };
  static const int who[] = {0, 1};
  static const smelt_stage_calls meets = {.struct_size = sizeof meets, .run = meet};
  const smelt_stage stages[] = {{.name = "one", .calls = &meets, .context = (void *)&who[0], .inputs = from_push, .n_inputs = 1, .n_outputs = 1},
                                {.name = "two", .calls = &meets, .context = (void *)&who[1], .inputs = from_first, .n_inputs = 1, .n_outputs = 1}};
  smelt_stream *stream = open_functions(stages, 2, (const smelt_wire[]){{1, 0}}, 1, 0);
  DLTensor out;
  for (int item = 0, popped = 0; popped < ROUNDS; item++) { /* one more is pushed than popped, which the last meets */
    EXPECT(push_number(stream, (float)item, FOR_EVER) == SMELT_OK);
    if (item < 1) continue;
    EXPECT(smelt_pop(stream, &out, 1, FOR_EVER) == SMELT_OK && number(&out) == (float)popped);
    popped++;
  }
  atomic_store(&meeting[0], 1 << 20); /* the last item has nobody to wait for */
  smelt_end_stream(stream);
}

/* A diamond: two stages that read the first, one that reads both and what was pushed; of several outputs one is read twice. */
static void test_branches(void) {
  function f[4] = {0};
  const smelt_wire join[] = {{1, 0}, {2, 1}, {-1, 0}, {0, 0}};
  const smelt_stage stages[] = {{.calls = &plain, .context = &f[0], .inputs = from_push, .n_inputs = 1, .n_outputs = 1},
                                {.calls = &plain, .context = &f[1], .inputs = from_first, .n_inputs = 1, .n_outputs = 1},
                                {.name = "third", .calls = &plain, .context = &f[2], .inputs = from_first, .n_inputs = 1, .n_outputs = 2},
                                {.calls = &plain, .context = &f[3], .inputs = join, .n_inputs = 4, .n_outputs = 1}};
  const smelt_wire popped[] = {{3, 0}, {-1, 0}, {2, 0}, {2, 0}};
  smelt_stream *stream = open_functions(stages, 4, popped, 4, 2);
  DLTensor out[4];
  for (int i = 0; i < ITEMS; i++) {
    float v = (float)i;
    EXPECT(push_number(stream, v, FOR_EVER) == SMELT_OK && smelt_pop(stream, out, 4, FOR_EVER) == SMELT_OK);
    EXPECT(number(&out[0]) == 1 + (v + 2) + (v + 2) + v + (v + 1) && number(&out[1]) == v && number(&out[2]) == v + 2 && out[3].data == out[2].data);
  }
  f[2].status = SMELT_DEVICE; /* its branch alone fails; the join has no result either */
  EXPECT(push_number(stream, 1, FOR_EVER) == SMELT_OK && smelt_pop(stream, out, 4, FOR_EVER) == SMELT_DEVICE && said("stage 'third': told to fail"));
  f[2].status = (smelt_status)77;
  EXPECT(push_number(stream, 1, FOR_EVER) == SMELT_OK && smelt_pop(stream, out, 4, FOR_EVER) == SMELT_INTERNAL && said("a status that is none of a run"));
  f[2].status = SMELT_END; /* which would be taken for the stream's own */
  EXPECT(push_number(stream, 1, FOR_EVER) == SMELT_OK && smelt_pop(stream, out, 4, FOR_EVER) == SMELT_INTERNAL);
  EXPECT(f[1].runs == ITEMS + 3 && f[3].runs == ITEMS);
  smelt_end_stream(stream);
}

/* As many items go in as there are slots, and none more until a result has been given back. */
static void test_back_pressure(void) {
  enum { DEPTH = 5, SHORT_NS = 2000000 };
  function f = {0};
  const smelt_stage stage = {.calls = &gated, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1};
  smelt_stream *stream = open_functions(&stage, 1, from_first, 1, DEPTH);
  DLTensor out;
  EXPECT(smelt_pop(stream, &out, 1, 0) == SMELT_AGAIN && said("not there yet"));
  for (int i = 0; i < DEPTH; i++) EXPECT(push_number(stream, (float)i, 0) == SMELT_OK);
  uint64_t start = sm_now();
  EXPECT(push_number(stream, 9, SHORT_NS) == SMELT_AGAIN && smelt_pop(stream, &out, 1, SHORT_NS) == SMELT_AGAIN && sm_now() - start >= 2 * SHORT_NS);
  atomic_store(&f.gate, 1);
  EXPECT(smelt_pop(stream, &out, 1, FOR_EVER) == SMELT_OK && number(&out) == 1);
  EXPECT(push_number(stream, 9, 0) == SMELT_AGAIN); /* the caller still has the first */
  EXPECT(number(&out) == 1);
  EXPECT(smelt_pop(stream, &out, 1, FOR_EVER) == SMELT_OK && number(&out) == 2);
  EXPECT(push_number(stream, 9, 0) == SMELT_OK);
  smelt_end_stream(stream); /* with items in it */
}

/* What a function leaves that is no tensor of host memory is its item's error. */
static void test_wrong_outputs(void) {
  function f = {.shape = {2, 1}, .strides = {3, 1}};
  const struct { DLTensor t; const char *why; } wrong[] = {
      {{.data = &f.value, .device = {2, 0}, .dtype = {2, 32, 1}}, "is not in host memory"},
      {{.data = &f.value, .device = {1, 0}, .ndim = -1, .dtype = {2, 32, 1}}, "fewer than 0 or more than 64 dims"},
      {{.data = &f.value, .device = {1, 0}, .ndim = 65, .dtype = {2, 32, 1}, .shape = f.shape}, "fewer than 0 or more than 64 dims"},
      {{.data = &f.value, .device = {1, 0}, .ndim = 1, .dtype = {2, 32, 1}}, "has no shape"},
      {{.data = &f.value, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = f.shape, .strides = f.strides}, "strides"},
      {{.data = &f.value, .device = {1, 0}, .ndim = 1, .dtype = {2, 32, 1}, .shape = (int64_t[]){-1}}, "negative dim"},
      {{.data = &f.value, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = (int64_t[]){(int64_t)1 << 60, 1 << 20}}, "multiply to more"},
      {{.data = NULL, .device = {1, 0}, .ndim = 0, .dtype = {2, 32, 1}}, "has no data"},
      {{.data = NULL, .device = {1, 0}, .ndim = 1, .dtype = {2, 32, 1}, .shape = (int64_t[]){0}}, NULL}, /* empty is none of them */
  };
  const smelt_stage stage = {.name = "odd", .calls = &plain, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1};
  smelt_stream *stream = open_functions(&stage, 1, from_first, 1, 2);
  DLTensor out;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    f.gives = wrong[i].t;
    EXPECT(push_number(stream, 1, FOR_EVER) == SMELT_OK);
    smelt_status status = smelt_pop(stream, &out, 1, FOR_EVER);
    if (wrong[i].why) EXPECT(status == SMELT_SHAPE && said("stage 'odd': its output 0 ") && said(wrong[i].why));
    else EXPECT(status == SMELT_OK && out.ndim == 1 && out.shape[0] == 0);
    if (wrong[i].why) EXPECT(smelt_push(stream, &wrong[i].t, 1, 0) == SMELT_INVALID && said("smelt_push: tensor 0") && said(wrong[i].why));
  }
  smelt_end_stream(stream);
}

static void test_refusals(smelt_session *session) {
  function f = {0};
  smelt_stage stage = {.name = "s", .calls = &plain, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1};
  const smelt_stream_options good = {.struct_size = sizeof good, .stage_size = sizeof stage, .stages = &stage, .n_stages = 1, .n_pushed = 1,
                                     .popped = from_first, .n_popped = 1};
  smelt_stream *stream = (smelt_stream *)&f;
#define REFUSED(text, ...)                                                                             \
  do {                                                                                                 \
    smelt_stream_options o = good;                                                                     \
    __VA_ARGS__;                                                                                       \
    EXPECT(smelt_start_stream(&o, &stream) == SMELT_INVALID && !stream && said(text));                  \
    stage = (smelt_stage){.name = "s", .calls = &plain, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1}; \
  } while (0)
  REFUSED("struct_size", o.struct_size = 8);
  REFUSED("struct_size", o.struct_size = -1);
  REFUSED("stage_size", o.stage_size = 8);
  REFUSED("from 1 to 64 stages", o.n_stages = 0);
  REFUSED("from 1 to 64 stages", o.n_stages = 65);
  REFUSED("from 1 to 64 stages", o.stages = NULL);
  REFUSED("n_pushed or n_popped", o.n_pushed = UINT32_MAX);
  REFUSED("n_pushed or n_popped", o.n_popped = 4097);
  REFUSED("depth is not from 2", o.depth = 1);
  REFUSED("depth is not from 2", o.depth = -1);
  REFUSED("depth is not from 2", o.depth = 1025);
  REFUSED("more than 1048576", o.depth = 1024; stage.n_outputs = 4096);
  REFUSED("`popped`", o.popped = NULL);
  REFUSED("`popped`", o.popped = (const smelt_wire[]){{1, 0}});
  REFUSED("`popped`", o.popped = (const smelt_wire[]){{0, 1}});
  REFUSED("stage 0 s: it has no function", stage.calls = NULL);
  REFUSED("calls->struct_size", stage.calls = (const smelt_stage_calls[]){{.struct_size = 4, .run = call}});
  REFUSED("stage 0 s: inputs is NULL", stage.inputs = NULL);
  REFUSED("more than 4096", stage.n_inputs = UINT32_MAX);
  REFUSED("a wire begins at no output of an earlier stage", stage.inputs = (const smelt_wire[]){{0, 0}});
  REFUSED("a wire begins at no output of an earlier stage", stage.inputs = (const smelt_wire[]){{-1, 1}});
  REFUSED("a wire begins at no output of an earlier stage", stage.inputs = (const smelt_wire[]){{-2, 0}});
  REFUSED("a wire begins at no output of an earlier stage", stage.inputs = (const smelt_wire[]){{-1, -1}});
#undef REFUSED
  EXPECT(smelt_start_stream(NULL, &stream) == SMELT_INVALID && said("options is NULL"));
  EXPECT(smelt_start_stream(&good, NULL) == SMELT_INVALID && said("out is NULL"));
  EXPECT(smelt_as_stage(NULL, &stage) == SMELT_INVALID && smelt_as_stage(session, NULL) == SMELT_INVALID);
  smelt_stage same[2];
  for (int i = 0; i < 2; i++) {
    EXPECT(smelt_as_stage(session, &same[i]) == SMELT_OK);
    same[i].inputs = pushed_wires;
  }
  smelt_stream_options twice = good;
  twice.stages = same, twice.n_stages = 2, twice.n_pushed = 2;
  EXPECT(smelt_start_stream(&twice, &stream) == SMELT_INVALID && said("an earlier stage runs the same session") && said("smelt_fork"));
  smelt_stage_stats stats;
  DLTensor t;
  EXPECT(smelt_push(NULL, &t, 1, 0) == SMELT_INVALID && smelt_pop(NULL, &t, 1, 0) == SMELT_INVALID && smelt_finish_stream(NULL) == SMELT_INVALID);
  EXPECT(smelt_ask_stage(NULL, 0, &stats) == SMELT_INVALID);
  smelt_end_stream(NULL);
  stage = (smelt_stage){.calls = &plain, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1};
  EXPECT(smelt_start_stream(&good, &stream) == SMELT_OK);
  EXPECT(smelt_ask_stage(stream, 1, &stats) == SMELT_INVALID && smelt_ask_stage(stream, 0, NULL) == SMELT_INVALID);
  EXPECT(smelt_push(stream, NULL, 1, 0) == SMELT_SHAPE && smelt_push(stream, &t, 0, 0) == SMELT_SHAPE && said("got 0 tensors, the stream takes 1"));
  EXPECT(smelt_pop(stream, NULL, 1, 0) == SMELT_SHAPE && smelt_pop(stream, &t, 2, 0) == SMELT_SHAPE);
  smelt_end_stream(stream);
}

/* A second thread in the same call is told so, and the first goes on. Which is the first is decided here: the one
 * that waits asks again where the other, which only looks, was in the call. */
static void *pop_one(void *stream) {
  DLTensor out;
  smelt_status status;
  while ((status = smelt_pop(stream, &out, 1, FOR_EVER)) == SMELT_INVALID) sm_yield();
  return status == SMELT_OK ? stream : NULL;
}
static void test_one_at_a_time(void) {
  function f = {0};
  const smelt_stage stage = {.calls = &gated, .context = &f, .inputs = from_push, .n_inputs = 1, .n_outputs = 1};
  smelt_stream *stream = open_functions(&stage, 1, from_first, 1, 2);
  sm_thread other;
  DLTensor out;
  void *got = NULL;
  smelt_status status;
  EXPECT(pthread_create(&other, NULL, pop_one, stream) == 0);
  while ((status = smelt_pop(stream, &out, 1, 0)) == SMELT_AGAIN) sm_sleep(100000); /* it has not begun yet */
  EXPECT(status == SMELT_INVALID && said("another thread is in the same call"));
  EXPECT(push_number(stream, 1, 0) == SMELT_OK);
  atomic_store(&f.gate, 1);
  pthread_join(other, &got);
  EXPECT(got == stream);
  smelt_end_stream(stream);
}

#ifndef NO_FORK
static void test_fork(smelt_session *a, smelt_session *b) {
  smelt_stream *stream = two_models(a, b, 0);
  DLTensor z;
  EXPECT(push(stream, 3, 4, 0) == SMELT_OK);
  int child = fork(), status = 1;
  if (!child) {
    EXPECT(push(stream, 3, 4, 0) == SMELT_INVALID && said("before this process was forked"));
    EXPECT(smelt_pop(stream, &z, 1, 0) == SMELT_INVALID);
    smelt_end_stream(stream);
    _exit(failures != 0);
  }
  waitpid(child, &status, 0);
  EXPECT(status == 0);
  EXPECT(smelt_pop(stream, &z, 1, FOR_EVER) == SMELT_OK && right(3, 4, &z));
  smelt_end_stream(stream);
}
#endif

/* Where all items are of one size, slots have what they need after one round, and sessions do, too. */
static void test_steady(smelt_session *a, smelt_session *b) {
  enum { DEPTH = 4, WARM = 3 * DEPTH };
  smelt_stream *stream = two_models(a, b, DEPTH);
  smelt_stage_stats before = {0}, after = {0};
  smelt_memory held = {0}, then = {0};
  DLTensor z;
  for (int item = 0; item < ITEMS; item++) {
    EXPECT(push(stream, 5, 12, FOR_EVER) == SMELT_OK && smelt_pop(stream, &z, 1, FOR_EVER) == SMELT_OK && right(5, 12, &z));
    if (item == WARM) EXPECT(smelt_ask_stage(stream, 0, &before) == SMELT_OK && smelt_memory_stats(a, &held) == SMELT_OK);
  }
  EXPECT(smelt_ask_stage(stream, 0, &after) == SMELT_OK && smelt_memory_stats(a, &then) == SMELT_OK);
  EXPECT(before.bytes == after.bytes && before.allocations == after.allocations && held.allocations == then.allocations);
  smelt_end_stream(stream);
}

#ifdef SMELT_TEST_ALLOC
/* Memory that the system does not give is the item's error, or that of the push; the next one goes through. */
static void test_denied(smelt_session *a, smelt_session *b) {
  DLTensor z;
  for (int allow = 0; allow < 14; allow++) {
    smelt_stream *stream = two_models(a, b, 2);
    atomic_store(&allowed, allow);
    smelt_status pushed = push(stream, allow, 60 + allow % 8, FOR_EVER), popped = pushed ? SMELT_OK : smelt_pop(stream, &z, 1, FOR_EVER);
    atomic_store(&allowed, 1L << 40);
    EXPECT((pushed == SMELT_OK || pushed == SMELT_DEVICE) && (popped == SMELT_OK || popped == SMELT_DEVICE));
    if (!allow) EXPECT(pushed == SMELT_DEVICE && said("no memory for a copy"));
    EXPECT(push(stream, allow, 60, FOR_EVER) == SMELT_OK && smelt_pop(stream, &z, 1, FOR_EVER) == SMELT_OK && right(allow, 60, &z));
    smelt_end_stream(stream);
  }
}
#endif

int main(int argc, char **argv) {
  smelt_session *a = NULL, *b = NULL;
  const smelt_options options = {.struct_size = sizeof options, .threads = 2};
  if (argc < 2 || smelt_open(argv[1], &options, &a) || smelt_fork(a, &b)) return printf("%s\n", smelt_error(NULL)), 1;
  for (int32_t depth = 2; depth < 7; depth++) test_order(a, b, depth);
  test_threads(a, b);
  test_failures(a, b);
  test_overlap();
  test_branches();
  test_back_pressure();
  test_wrong_outputs();
  test_refusals(a);
  test_one_at_a_time();
  test_steady(a, b);
#ifndef NO_FORK
  test_fork(a, b);
#endif
#ifdef SMELT_TEST_ALLOC
  test_denied(a, b);
#endif
  float x[M] = {0};
  int64_t xs[] = {1, M}, ys[] = {M};
  DLTensor in[] = {floats(x, 2, xs), floats(x, 1, ys)}, out[3] = {{0}};
  EXPECT(smelt_run(a, in, 2, out, 3) == SMELT_OK && out[0].shape[0] == 1); /* sessions are as before */
  smelt_close(b);
  smelt_close(a);
  if (!failures) printf("OK\n");
  return failures != 0;
}
