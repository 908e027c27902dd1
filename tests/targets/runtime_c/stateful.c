/* stateful.c: a model with state, and a program that runs it: failures, reset, forks, values from outside, memory.
 *
 * input x f32[n]; states sum f32[n], which sum + x replaces, and log f32[k], which log and x behind it replace; output y f32[n] = sum + x.
 * A run whose x starts with BAD fails after it has written all outputs. With WITH_UNITS it runs on the fake device, where the states are,
 * too; with CROSSED the new sum is made on the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "rt.h"

static const DLDataType F32 = {2, 32, 1};
enum { BAD = 13, MOST = 8 };
static float *pointer(int64_t address) { return (float *)(intptr_t)address; }
static void add(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* sum, x, t */
  (void)place;
  for (int64_t i = lo; i < hi; i++) pointer(a[2])[i] = pointer(a[0])[i] + pointer(a[1])[i];
}

#ifdef WITH_UNITS
enum { HOST, UNIT };
extern const smelt_driver smelt_driver_fake;
extern size_t fake_allowed; /* bytes that it gives at once */
static const smelt_unit_desc units[] = {{&smelt_driver_fake, NULL, 0, 0, 0}};
#ifdef CROSSED
enum { MADE = HOST };
#else
enum { MADE = UNIT };
#endif
static const uint32_t homes[] = {UNIT, UNIT, UNIT, UNIT, MADE, UNIT}; /* x, sum, log; y, sum, log */
static const uint32_t arena_homes[] = {UNIT};
#else
enum { UNIT };
#endif
static const smelt_kernel_desc kernels[] = {
    {.name = "add", .fn = add, .unit = UNIT, .n_buffers = 3, .n_dims = 0, .lane_count = 1, .grain = 1},
};
static const smelt_tensor_desc inputs[] = {{"x", F32, 1}, {"sum", F32, 1}, {"log", F32, 1}};
static const smelt_tensor_desc outputs[] = {{"y", F32, 1}, {"next_sum", F32, 1}, {"next_log", F32, 1}};
static const smelt_state_desc states[] = {{"sum", F32, 1, 0, 0, 0, 0}, {"log", F32, 1, 0, 0, MOST * 1024 * 4, 0}};
static const uint32_t numbers[] = {0, 1};
static const smelt_check_desc checks[] = {
    {SMELT_SHAPE, 0, "state 'sum' axis 0: expected {want} (n), got {got}"},
    {SMELT_SHAPE, 0, "state 'log' axis 0: k is {got}, above {want}"},
};

static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  int64_t n = shapes[0][0];
  int32_t status = smelt_rt_start(rt, 1, 0, n);
  if (!status) status = smelt_rt_start(rt, 2, 0, 0);
  if (status) return status;
  if (shapes[1][0] != n) return smelt_rt_fail(rt, 0, shapes[1][0], n);
  if (shapes[2][0] > MOST * 1024) return smelt_rt_fail(rt, 1, shapes[2][0], MOST * 1024);
  slots[0] = n * 4, slots[1] = n, slots[2] = shapes[2][0];
  return SMELT_OK;
}

static int32_t model_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr t) {
  int64_t n = slots[1], k = slots[2], longer = n + k;
  smelt_addr y, sum, log;
  int32_t status;
  (void)weights;
  if (!(y = smelt_rt_output(rt, 0, &n)) || !(sum = smelt_rt_output(rt, 1, &n)) || !(log = smelt_rt_output(rt, 2, &longer))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, 0, (int64_t[]){in[1], in[0], t}, n, 0))) return status;
  if ((status = smelt_rt_copy(rt, y, t, n * 4)) || (status = smelt_rt_copy(rt, sum, t, n * 4))) return status;
  if ((status = smelt_rt_copy(rt, log, in[2], k * 4)) || (status = smelt_rt_copy(rt, log + k * 4, in[0], n * 4))) return status;
  union { int32_t bits; float f; } first = {n ? (int32_t)smelt_rt_read(rt, in[0], 4, 1) : 0};
  return first.f == BAD ? rt_error(rt, SMELT_UNSUPPORTED, "told to fail") : SMELT_OK;
}

static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 3, .n_outputs = 3, .n_checks = 2, .n_slots = 3, .n_reads = 2, .n_writes = 2, .reads = numbers, .writes = numbers,
    .inputs = inputs, .outputs = outputs, .checks = checks, .plan = model_plan, .run = model_run,
#ifdef WITH_UNITS
    .homes = homes,
#endif
}};
#ifdef WITH_UNITS
static const uint32_t state_homes[] = {UNIT, UNIT};
static const smelt_variant_desc variants[] = {{.name = "any", .units = 1, .states = state_homes}};
#else
static const smelt_variant_desc variants[] = {{.name = "any"}};
#endif
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_variants = 1, .n_kernels = 1, .n_arenas = 1, .n_states = 2,
    .name = "stateful", .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels, .states = states,
#ifdef WITH_UNITS
    .units = units, .n_units = 1, .homes = arena_homes,
#endif
};

#ifdef SMELT_TEST_ALLOC
static size_t allowed = SIZE_MAX; /* bytes that the system gives at once */
void *smelt_test_map(size_t bytes) { return bytes > allowed ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64); }
void smelt_test_unmap(void *at, size_t bytes) { (void)bytes, free(at); }
#endif

/* ---- the program: argv[1] is the bundle's folder ---- */
static int failures;
#define EXPECT(condition)                                                                                                              \
  do {                                                                                                                                 \
    if (!(condition)) failures++, printf("line %d: %s [%s] [%s]\n", __LINE__, #condition, smelt_error(session), smelt_error(NULL));     \
  } while (0)

static DLTensor vector(const float *data, int64_t *n) {
  return (DLTensor){.data = (void *)(uintptr_t)data, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = n};
}

static smelt_status step(smelt_session *session, int64_t n, float first, DLTensor *y) {
  static float x[4096];
  for (int64_t i = 0; i < n; i++) x[i] = first + (float)i;
  DLTensor in = vector(x, &n);
  memset(y, 0, sizeof *y);
  return smelt_run(session, &in, 1, y, 1);
}

/* Are the states those of `runs` steps of n elements, each with first = 1? */
static int holds(smelt_session *session, int64_t runs, int64_t n) {
  DLTensor sum, log;
  if (smelt_state_get(session, 0, &sum)) return 0;
  if (!runs) return !sum.data;
  if (sum.ndim != 1 || sum.shape[0] != n) return 0;
  for (int64_t i = 0; i < n; i++)
    if (((float *)sum.data)[i] != (float)(runs * (1 + i))) return 0;
  if (smelt_state_get(session, 1, &log) || log.shape[0] != runs * n) return 0;
  for (int64_t i = 0; i < runs * n; i++)
    if (((float *)log.data)[i] != (float)(1 + i % n)) return 0;
  return 1;
}

static void test_queries(smelt_session *session) {
  DLTensor t;
  EXPECT(smelt_input_count(session) == 1 && smelt_output_count(session) == 1 && smelt_state_count(session) == 2);
  EXPECT(!smelt_input_name(session, 1) && !smelt_output_name(session, 1) && !smelt_state_name(session, 2));
  EXPECT(!strcmp(smelt_state_name(session, 1), "log") && smelt_state_rank(session, 0) == 1 && smelt_state_type(session, 1).bits == 32);
  EXPECT(smelt_state_get(session, 2, &t) == SMELT_INVALID && strstr(smelt_error(NULL), "no state of this number"));
  EXPECT(smelt_state_get(NULL, 0, &t) == SMELT_INVALID && smelt_state_get(session, 0, NULL) == SMELT_INVALID);
  EXPECT(smelt_reset(NULL) == SMELT_INVALID && smelt_fork(NULL, &session) == SMELT_INVALID);
}

static void test_runs(smelt_session *session) {
  DLTensor y;
  EXPECT(holds(session, 0, 0));
  for (int64_t i = 1; i <= 20; i++) {
    EXPECT(step(session, 5, 1, &y) == SMELT_OK && ((float *)y.data)[4] == (float)(i * 5));
    EXPECT(holds(session, i, 5));
    if (i == 7) EXPECT(smelt_trim(session) == SMELT_OK && holds(session, 7, 5));
    if (i % 5 == 0) EXPECT(step(session, 5, BAD, &y) == SMELT_UNSUPPORTED && holds(session, i, 5));
    if (i % 6 == 0) EXPECT(step(session, 4, 1, &y) == SMELT_SHAPE && strstr(smelt_error(session), "expected 4 (n), got 5") && holds(session, i, 5));
  }
  EXPECT(smelt_reset(session) == SMELT_OK && holds(session, 0, 0));
  EXPECT(step(session, 3, BAD, &y) == SMELT_UNSUPPORTED && holds(session, 0, 0)); /* a first run that fails */
  EXPECT(step(session, 0, 0, &y) == SMELT_OK && holds(session, 1, 0));            /* an empty state is one, too */
  EXPECT(smelt_reset(session) == SMELT_OK && step(session, 3, 1, &y) == SMELT_OK && holds(session, 1, 3));
}

static void test_forks(smelt_session *session) {
  smelt_session *other = NULL;
  DLTensor y;
  smelt_reset(session);
  for (int i = 0; i < 3; i++) EXPECT(step(session, 6, 1, &y) == SMELT_OK);
  EXPECT(smelt_fork(session, &other) == SMELT_OK && holds(other, 3, 6));
  EXPECT(step(other, 6, 1, &y) == SMELT_OK && holds(other, 4, 6) && holds(session, 3, 6));
  EXPECT(step(session, 6, 1, &y) == SMELT_OK && step(session, 6, 1, &y) == SMELT_OK && holds(session, 5, 6) && holds(other, 4, 6));
  smelt_close(other);
  EXPECT(holds(session, 5, 6) && smelt_reset(session) == SMELT_OK);
  EXPECT(smelt_fork(session, &other) == SMELT_OK && holds(other, 0, 0));
  smelt_close(other);
}

static void test_values_from_outside(smelt_session *session) {
  static const float log[] = {1, 2, 1, 2};
  float sum[] = {2, 4};
  int64_t two = 2, four = 4, wide[] = {2, 2};
  DLTensor y, s = vector(sum, &two), l = vector(log, &four), seen;
  EXPECT(smelt_state_set(session, 0, &s) == SMELT_OK && smelt_state_set(session, 1, &l) == SMELT_OK);
  EXPECT(holds(session, 2, 2) && step(session, 2, 1, &y) == SMELT_OK && holds(session, 3, 2));
  EXPECT(smelt_state_get(session, 1, &seen) == SMELT_OK && smelt_state_set(session, 1, &seen) == SMELT_OK && holds(session, 3, 2));
  DLTensor bad = l;
  bad.ndim = 2, bad.shape = wide;
  EXPECT(smelt_state_set(session, 1, &bad) == SMELT_SHAPE && strstr(smelt_error(NULL), "state 'log': your tensor has 2 dims") && holds(session, 3, 2));
  EXPECT(smelt_state_set(session, 0, &l) == SMELT_OK); /* extents are the next run's to check */
  EXPECT(step(session, 2, 1, &y) == SMELT_SHAPE && strstr(smelt_error(session), "state 'sum' axis 0: expected 2 (n), got 4"));
  EXPECT(smelt_state_set(session, 0, NULL) == SMELT_OK && smelt_state_set(session, 1, NULL) == SMELT_OK && holds(session, 0, 0));
  EXPECT(smelt_state_get(session, 1, &seen) == SMELT_OK && !seen.data && smelt_state_set(session, 1, &l) == SMELT_OK);
  EXPECT(smelt_state_set(session, 1, &(DLTensor){.dtype = l.dtype}) == SMELT_SHAPE); /* one that nobody has filled in */
  EXPECT(smelt_state_set(session, 1, &seen) == SMELT_OK && holds(session, 0, 0)); /* a start, as it was told */
}

/* A caller's output may not lie where the state is that the run reads, which smelt_state_get shows him. */
static void test_memory_is_apart(smelt_session *session) {
#ifndef WITH_UNITS
  DLTensor y, sum;
  float x[] = {1, 2};
  int64_t two = 2;
  EXPECT(step(session, 2, 1, &y) == SMELT_OK && smelt_state_get(session, 0, &sum) == SMELT_OK);
  DLTensor in = vector(x, &two), out = vector(sum.data, &two);
  EXPECT(smelt_run(session, &in, 1, &out, 1) == SMELT_INVALID && strstr(smelt_error(session), "share memory") && holds(session, 1, 2));
#endif
  smelt_reset(session);
}

static void test_bounds(smelt_session *session) {
  DLTensor y;
  smelt_memory before, after;
  for (int i = 0; i < MOST; i++) EXPECT(step(session, 1024, 1, &y) == SMELT_OK);
  smelt_memory_stats(session, &before);
#ifdef WITH_UNITS
  const uint64_t bound = 2 * (MOST * 6144 + 6144 + 4096); /* both buffers of log and sum, by half more than they need, and a page */
#else
  const uint64_t bound = 2 * (MOST * 4096 + 6144 + 4096); /* those of log have room for the most that it may take, and no more */
#endif
  EXPECT(before.state_capacity >= MOST * 4096 && before.state_capacity <= bound);
  smelt_reset(session);
  for (int i = 0; i < MOST; i++) EXPECT(step(session, 1024, 1, &y) == SMELT_OK && holds(session, i + 1, 1024));
  smelt_memory_stats(session, &after);
#ifndef WITH_UNITS /* there a value that was asked for is on the host as well */
  EXPECT(after.state_capacity <= bound);
#endif
  EXPECT(step(session, 1024, 1, &y) == SMELT_OK && step(session, 1024, 1, &y) == SMELT_SHAPE && strstr(smelt_error(session), "above 8192"));
  smelt_reset(session);
}

/* Where there is no memory for the room to grow, there is enough for the value itself. */
static void test_little_memory(smelt_session *session) {
#if defined(SMELT_TEST_ALLOC) || defined(WITH_UNITS)
  DLTensor y;
  float values[1000];
  int64_t n = 1000;
  for (int64_t i = 0; i < n; i++) values[i] = (float)(1 + i);
  DLTensor value = vector(values, &n);
  EXPECT(smelt_reset(session) == SMELT_OK && smelt_trim(session) == SMELT_OK);
#ifdef WITH_UNITS
#define allowed fake_allowed
#endif
  allowed = 4096; /* a thousand floats; half more is too much, and so is what bounds the log */
  EXPECT(step(session, n, 1, &y) == SMELT_OK && holds(session, 1, n));
  EXPECT(smelt_state_set(session, 0, &value) == SMELT_OK && holds(session, 1, n));
  allowed = 2048;
  EXPECT(smelt_reset(session) == SMELT_OK && smelt_trim(session) == SMELT_OK && step(session, n, 1, &y) == SMELT_DEVICE);
  allowed = SIZE_MAX;
#undef allowed
  EXPECT(step(session, n, 1, &y) == SMELT_OK && holds(session, 1, n));
#endif
  smelt_reset(session);
}

static uint64_t state_capacity(smelt_session *session) {
  smelt_memory now = {0};
  smelt_memory_stats(session, &now);
  return now.state_capacity;
}

/* What holds no value is given back; what does, stays. */
static void test_trim(smelt_session *session) {
  DLTensor y;
  EXPECT(step(session, 1000, 1, &y) == SMELT_OK && step(session, 1000, 1, &y) == SMELT_OK);
  EXPECT(smelt_trim(session) == SMELT_OK && state_capacity(session) >= 3000 * sizeof(float) && holds(session, 2, 1000));
  EXPECT(smelt_reset(session) == SMELT_OK && state_capacity(session) > 0);
  EXPECT(smelt_trim(session) == SMELT_OK && state_capacity(session) == 0 && holds(session, 0, 0));
  EXPECT(step(session, 1000, 1, &y) == SMELT_OK && holds(session, 1, 1000));
  uint64_t seen = state_capacity(session); /* on a device with the copies that `holds` looked at */
  smelt_session *other = NULL;
  EXPECT(smelt_fork(session, &other) == SMELT_OK && state_capacity(session) <= seen && holds(other, 1, 1000));
  smelt_close(other);
#if defined(WITH_UNITS) && !defined(CROSSED)
  EXPECT(state_capacity(session) < seen); /* nobody may look at the copies any more */
#endif
  smelt_reset(session);
}

/* What a caller was shown stays where and as it is while he only asks. */
static void test_what_is_shown(smelt_session *session) {
  DLTensor y, first, again, other;
  smelt_memory memory;
  const char *name;
  uint64_t ns, launches;
  EXPECT(step(session, 5, 1, &y) == SMELT_OK && smelt_state_get(session, 0, &first) == SMELT_OK);
  const void *data = first.data;
  const int64_t *shape = first.shape;
  EXPECT(smelt_memory_stats(session, &memory) == SMELT_OK && smelt_state_get(session, 1, &other) == SMELT_OK && other.shape[0] == 5);
  EXPECT(smelt_profile(session, 1) == SMELT_OK && smelt_kernel_stats(session, 0, &name, &ns, &launches) == SMELT_OK);
  EXPECT(smelt_profile(session, 0) == SMELT_OK && smelt_state_get(session, 0, &again) == SMELT_OK);
  EXPECT(again.data == data && again.shape == shape && shape[0] == 5 && ((const float *)data)[4] == 5);
  smelt_reset(session);
}

static void test_no_memory(smelt_session *session) {
#ifdef SMELT_TEST_ALLOC
  DLTensor y;
  int64_t n = 3000;
  static float values[3000];
  DLTensor value = vector(values, &n);
  EXPECT(step(session, 2, 1, &y) == SMELT_OK);
  allowed = 0;
  smelt_session *other = NULL;
  EXPECT(smelt_state_set(session, 1, &value) == SMELT_DEVICE && smelt_fork(session, &other) == SMELT_DEVICE && !other);
  allowed = SIZE_MAX;
  EXPECT(holds(session, 1, 2) && step(session, 2, 1, &y) == SMELT_OK && holds(session, 2, 2));
#endif
  smelt_reset(session);
}

int main(int argc, char **argv) {
  smelt_session *session = NULL;
  if (argc < 2) return 2;
  EXPECT(smelt_open(argv[1], NULL, &session) == SMELT_OK);
  if (!session) return 0;
  test_queries(session);
  test_runs(session);
  test_forks(session);
  test_values_from_outside(session);
  test_memory_is_apart(session);
  test_bounds(session);
  test_little_memory(session);
  test_trim(session);
  test_what_is_shown(session);
  test_no_memory(session);
  smelt_close(session);
  if (!failures) puts("OK");
  return 0;
}
