/* two_entries.c: a model with two entries over one state, and a program that runs it: order, failures, forks, threads, memory.
 *
 * begin: x f32[n]; y = 2 x, and the state sum f32[n] becomes x. add: x f32[n], reads sum; y = sum = sum + x; its second arena is the first
 * of the session's at its unit. peek: reads sum f32[n], whose n is its own to bind; y = sum. An x that starts with BAD fails at the end.
 * With WITH_UNITS the state lies on the fake device, where add runs; begin makes it on the host, and peek reads it there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "rt.h"

static const DLDataType F32 = {2, 32, 1};
enum { BAD = 13, MOST = 4096, BEGIN = 0, ADD, PEEK, ENTRIES };
static float *pointer(int64_t address) { return (float *)(intptr_t)address; }
static void add(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* s, x, t */
  (void)place;
  for (int64_t i = lo; i < hi; i++) pointer(a[2])[i] = pointer(a[0])[i] + pointer(a[1])[i];
}

#ifdef WITH_UNITS
enum { HOST, UNIT };
extern const smelt_driver smelt_driver_fake;
static const smelt_unit_desc units[] = {{&smelt_driver_fake, NULL, 0, 0, 0}};
#define HOMES(...) .homes = (const uint32_t[]){__VA_ARGS__},
#else
enum { HOST, UNIT = 0 };
#define HOMES(...)
#endif
static const uint32_t arena_homes[] = {UNIT, HOST};
static const smelt_kernel_desc kernels[] = {
    {.name = "add", .fn = add, .unit = UNIT, .n_buffers = 3, .n_dims = 0, .lane_count = 1, .grain = 1},
    {.name = "double", .fn = add, .unit = HOST, .n_buffers = 3, .n_dims = 0, .lane_count = 1, .grain = 1},
};
static const smelt_tensor_desc inputs[] = {{"x", F32, 1}, {"sum", F32, 1}}, outputs[] = {{"y", F32, 1}, {"next", F32, 1}};
static const smelt_state_desc states[] = {{"sum", F32, 1, 0, 0, MOST * 4, 0}};
static const uint32_t first[] = {0};
static const smelt_check_desc checks[] = {{SMELT_SHAPE, 0, "state 'sum' axis 0: expected {want} (n), got {got}"}};

static int32_t fails(smelt_rt *rt, smelt_addr x, int64_t n) {
  union { int32_t bits; float f; } value = {n ? (int32_t)smelt_rt_read(rt, x, 4, 1) : 0};
  return value.f == BAD ? rt_error(rt, SMELT_UNSUPPORTED, "told to fail") : SMELT_OK;
}

static int32_t begin_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  (void)rt;
  slots[0] = shapes[0][0] * 8, slots[1] = shapes[0][0];
  return SMELT_OK;
}
static int32_t begin_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = slots[1];
  smelt_addr y, next;
  int32_t status;
  (void)weights;
  if (!(y = smelt_rt_output(rt, 0, &n)) || !(next = smelt_rt_output(rt, 1, &n))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, 1, (int64_t[]){in[0], in[0], arena}, n, 0))) return status;
  if ((status = smelt_rt_copy(rt, y, arena, n * 4)) || (status = smelt_rt_copy(rt, next, in[0], n * 4))) return status;
  return fails(rt, in[0], n);
}

static int32_t add_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  int64_t n = shapes[0][0];
  int32_t status = smelt_rt_start(rt, 1, 0, n);
  if (status) return status;
  if (shapes[1][0] != n) return smelt_rt_fail(rt, 0, shapes[1][0], n);
  slots[0] = n * 4, slots[1] = n;
  return SMELT_OK;
}
static int32_t add_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = slots[1];
  smelt_addr y, next;
  int32_t status;
  (void)weights;
  if (!(y = smelt_rt_output(rt, 0, &n)) || !(next = smelt_rt_output(rt, 1, &n))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, 0, (int64_t[]){in[1], in[0], arena}, n, 1))) return status;
  if ((status = smelt_rt_copy(rt, y, arena, n * 4)) || (status = smelt_rt_copy(rt, next, arena, n * 4))) return status;
  return fails(rt, in[0], n);
}

static int32_t peek_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  int32_t status = smelt_rt_start(rt, 0, 0, 2);
  slots[0] = 0, slots[1] = shapes[0][0];
  return status;
}
static int32_t peek_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  smelt_addr y = smelt_rt_output(rt, 0, &slots[1]);
  (void)weights, (void)arena;
  return y ? smelt_rt_copy(rt, y, in[0], slots[1] * 4) : SMELT_DEVICE;
}

static const smelt_entry_desc entries[] = {
    {.name = "begin", .n_inputs = 1, .n_outputs = 2, .n_slots = 2, .arena = 1, .n_writes = 1, .writes = first, .inputs = inputs,
     .outputs = outputs, .plan = begin_plan, .run = begin_run, HOMES(HOST, HOST, HOST)},
    {.name = "add", .n_inputs = 2, .n_outputs = 2, .n_checks = 1, .n_slots = 2, .n_reads = 1, .n_writes = 1, .reads = first, .writes = first,
     .inputs = inputs, .outputs = outputs, .checks = checks, .plan = add_plan, .run = add_run, HOMES(UNIT, UNIT, UNIT, UNIT)},
    {.name = "peek", .n_inputs = 1, .n_outputs = 1, .n_slots = 2, .arena = 1, .n_reads = 1, .reads = first, .inputs = inputs + 1,
     .outputs = outputs, .plan = peek_plan, .run = peek_run, HOMES(HOST, HOST)},
};
#ifdef WITH_UNITS
static const uint32_t state_homes[] = {UNIT};
static const smelt_variant_desc variants[] = {{.name = "any", .units = 1, .states = state_homes}};
#else
static const smelt_variant_desc variants[] = {{.name = "any"}};
#endif
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = ENTRIES, .n_variants = 1, .n_kernels = 2, .n_arenas = 2, .n_states = 1,
    .name = "two", .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels, .states = states, .homes = arena_homes,
#ifdef WITH_UNITS
    .units = units, .n_units = 1,
#endif
};

#ifdef SMELT_TEST_ALLOC
static int denied;
void *smelt_test_map(size_t bytes) { return denied ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64); }
void smelt_test_unmap(void *at, size_t bytes) { (void)bytes, free(at); }
#endif

/* ---- the program: argv[1] is the bundle's folder ---- */
static int failures;
static smelt_session *view[ENTRIES];
#define EXPECT(condition)                                                                                                      \
  do {                                                                                                                         \
    if (!(condition)) failures++, printf("line %d: %s [%s]\n", __LINE__, #condition, smelt_error(NULL));                       \
  } while (0)

static smelt_status step(smelt_session *s, int64_t n, float start, DLTensor *y) {
  float x[MOST];
  for (int64_t i = 0; i < n; i++) x[i] = start + (float)i;
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n};
  memset(y, 0, sizeof *y);
  return smelt_run(s, &in, 1, y, 1);
}

/* Is the state `runs` times 1, 2, ..? By the entry that only reads it, and by the API. */
static int holds(int64_t runs, int64_t n) {
  DLTensor y = {0}, sum;
  if (smelt_run(view[PEEK], NULL, 0, &y, 1) || y.shape[0] != n) return 0;
  for (int64_t i = 0; i < n; i++)
    if (((float *)y.data)[i] != (float)(runs * (1 + i))) return 0;
  if (smelt_state_get(view[ADD], 0, &sum)) return 0;
  return runs ? sum.shape[0] == n && !memcmp(sum.data, y.data, (size_t)n * 4) : !sum.data; /* reading gives it no value */
}

static void test_order(void) {
  DLTensor y, kept;
  EXPECT(step(view[BEGIN], 5, 1, &kept) == SMELT_OK && ((float *)kept.data)[4] == 10 && holds(1, 5));
  for (int64_t i = 2; i < 9; i++) {
    EXPECT(step(view[ADD], 5, 1, &y) == SMELT_OK && ((float *)y.data)[4] == (float)(5 * i) && holds(i, 5));
    EXPECT(step(view[ADD], 5, BAD, &y) == SMELT_UNSUPPORTED && step(view[BEGIN], 3, BAD, &y) == SMELT_UNSUPPORTED && holds(i, 5));
    EXPECT(step(view[ADD], 4, 1, &y) == SMELT_SHAPE && !strcmp(smelt_error(view[ADD]), "entry 'add': state 'sum' axis 0: expected 4 (n), got 5"));
    if (i == 4) EXPECT(smelt_trim(view[PEEK]) == SMELT_OK && holds(4, 5));
  }
  EXPECT(step(view[BEGIN], 3, 1, &y) == SMELT_OK && holds(1, 3) && step(view[ADD], 3, 1, &y) == SMELT_OK && holds(2, 3));
  EXPECT(smelt_reset(view[PEEK]) == SMELT_OK && holds(0, 2)); /* peek starts it with two zeros, which it does not leave */
  EXPECT(step(view[ADD], 6, 1, &y) == SMELT_OK && holds(1, 6) && smelt_reset(view[BEGIN]) == SMELT_OK);
}

static void test_forks(void) {
  smelt_session *other = NULL, *mine[ENTRIES];
  DLTensor y;
  EXPECT(step(view[BEGIN], 4, 1, &y) == SMELT_OK && step(view[ADD], 4, 1, &y) == SMELT_OK);
  EXPECT(smelt_fork(view[ADD], &other) == SMELT_OK && other == smelt_entry(other, "add"));
  memcpy(mine, view, sizeof mine);
  EXPECT(step(view[ADD], 4, 1, &y) == SMELT_OK && holds(3, 4));
  for (int i = 0; i < ENTRIES; i++) view[i] = smelt_entry(other, entries[i].name);
  EXPECT(holds(2, 4) && step(view[ADD], 4, 1, &y) == SMELT_OK && step(view[ADD], 4, 1, &y) == SMELT_OK && holds(4, 4));
  smelt_close(view[PEEK]);
  memcpy(view, mine, sizeof mine);
  EXPECT(holds(3, 4));
}

static void test_memory(void) {
  DLTensor y;
  smelt_memory m;
  EXPECT(smelt_trim(view[BEGIN]) == SMELT_OK && smelt_reset(view[BEGIN]) == SMELT_OK);
  EXPECT(step(view[BEGIN], 1024, 1, &y) == SMELT_OK && step(view[ADD], 1024, 1, &y) == SMELT_OK);
  EXPECT(smelt_memory_stats(view[PEEK], &m) == SMELT_OK && m.runs && m.output_capacity >= 2 * 4096);
  EXPECT(m.arena_capacity >= 4096 + 8192 && m.arena_capacity <= 2 * (4096 + 8192));
#ifdef SMELT_TEST_ALLOC
  DLTensor value = {.data = y.data, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = y.shape};
  denied = 1;
  smelt_session *other = NULL;
  EXPECT(smelt_state_set(view[ADD], 0, &value) == SMELT_DEVICE && smelt_fork(view[PEEK], &other) == SMELT_DEVICE && !other);
  denied = 0;
#endif
  EXPECT(holds(2, 1024) && smelt_reset(view[ADD]) == SMELT_OK);
}

#ifndef WITH_UNITS
/* Two threads with an entry each: a run is whole, or is refused since the other one is under way. */
static void *runs(void *entry) {
  DLTensor y;
  for (int i = 0; i < 2000; i++) {
    smelt_status s = step(entry, 64, 1, &y);
    if (s == SMELT_INVALID && strstr(smelt_error(NULL), "is running in another thread")) continue;
    if (s != SMELT_OK) return (void *)1;
  }
  return NULL;
}
static void test_threads(void) {
  sm_thread threads[2];
  void *wrong[2];
  DLTensor sum;
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, runs, view[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], &wrong[i]);
  EXPECT(!wrong[0] && !wrong[1] && smelt_state_get(view[PEEK], 0, &sum) == SMELT_OK);
  float turns = ((float *)sum.data)[0];
  EXPECT(turns >= 1 && holds((int64_t)turns, 64));
}
#endif

int main(int argc, char **argv) {
  smelt_session *session = NULL;
  if (argc < 2) return 2;
  EXPECT(smelt_open(argv[1], NULL, &session) == SMELT_OK);
  if (!session) return 0;
  for (int i = 0; i < ENTRIES; i++) EXPECT((view[i] = smelt_entry(session, entries[i].name)) != NULL);
  EXPECT(view[BEGIN] == session && smelt_entry_count(session) == ENTRIES && !smelt_entry(session, "end"));
  EXPECT(smelt_input_count(view[PEEK]) == 0 && smelt_output_count(view[BEGIN]) == 1 && smelt_state_count(view[PEEK]) == 1);
  test_order();
  test_forks();
  test_memory();
#ifndef WITH_UNITS
  test_threads();
#endif
  smelt_close(view[ADD]);
  if (!failures) puts("OK");
  return 0;
}
