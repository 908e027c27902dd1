/* policies.c: a model with three ways to run it, on two fake devices and on the CPU, and a program whose clock the kernels move: which
 * of them its runs are bound to, in numbers that do not depend on the machine.
 *
 * Entries one and two: input x f32[n], output y f32[n] = x + 1 or x + 2; with WITH_STATE plus a state sum f32[n], which y replaces. A run takes
 * per_run[v] + n * per_element[v] ns and so many microjoules, on variant v; reading a state back takes home_ns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifndef NO_FORK
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "driver.h"
#include "rt.h"

enum { VARIANTS = 3, ENTRIES = 2, MOST_N = 4096, EVERY = 32, SHARE = 16 };
static const DLDataType F32 = {2, 32, 1};
static _Atomic uint64_t now_ns = 1;
uint64_t smelt_test_now(void) { return now_ns; }
static uint64_t per_run[VARIANTS], per_element[VARIANTS], microjoules[VARIANTS], home_ns;
static int reversed; /* to entry two the variants are as the others are to entry one */
static void use_energy(uint64_t more);

static float *pointer(int64_t address) { return (float *)(intptr_t)address; }
static void work(int v, const int64_t *a, int64_t lo, int64_t hi) { /* x, sum, y; what is added */
  for (int64_t i = lo; i < hi; i++) pointer(a[2])[i] = pointer(a[0])[i] + (a[1] ? pointer(a[1])[i] : 0) + (float)a[3];
  int as = reversed && a[3] == 2 ? VARIANTS - 1 - v : v;
  now_ns += per_run[as] + (uint64_t)(hi - lo) * per_element[as];
  use_energy(microjoules[as]);
}
static void work0(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { (void)place, work(0, a, lo, hi); }
static void work1(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { (void)place, work(1, a, lo, hi); }
static void work2(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { (void)place, work(2, a, lo, hi); }
enum { CPU = 2 };
#define KERNEL(f, u) {.name = #f, .fn = f, .unit = u, .n_buffers = 3, .n_dims = 1, .lane_count = 1, .grain = MOST_N}
static const smelt_kernel_desc kernels[VARIANTS] = {KERNEL(work0, 1), KERNEL(work1, 2), KERNEL(work2, 0)};

/* The fake device under two names; reading with a wait, as states are read, takes time. */
extern const smelt_driver smelt_driver_fake;
extern size_t fake_allowed, fake_breaks;
extern int fake_lost;
static smelt_driver first, second;
static const smelt_unit_desc units[] = {{&first, NULL, 0, 0, 0}, {&second, NULL, 0, 0, 0}};
static int refuses_to_open, refuses_state;
static int32_t slow_download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  if (wait) now_ns += home_ns;
  if (wait && refuses_state) return -7;
  return smelt_driver_fake.download(state, memory, offset, host, bytes, wait);
}
static int first_refuses;
static int32_t open_first(smelt_rt *rt, uint32_t unit, void **state) {
  return first_refuses ? rt_error(rt, SMELT_DEVICE, "first: never") : smelt_driver_fake.open(rt, unit, state);
}
static int32_t open_second(smelt_rt *rt, uint32_t unit, void **state) {
  return refuses_to_open ? rt_error(rt, SMELT_DEVICE, "second: not today") : smelt_driver_fake.open(rt, unit, state);
}

#ifdef WITH_STATE
enum { WITH = 1 };
#else
enum { WITH = 0 };
#endif
static const smelt_tensor_desc inputs[] = {{"x", F32, 1}, {"sum", F32, 1}}, outputs[] = {{"y", F32, 1}, {"next", F32, 1}};
static const smelt_state_desc states[] = {{"sum", F32, 1, 0, 0, MOST_N * 4, 0}};
static const uint32_t numbers[] = {0}, at1[] = {1, 1, 1, 1}, at2[] = {2, 2, 2, 2}, at0[] = {0, 0, 0, 0};
static const smelt_check_desc checks[] = {{SMELT_SHAPE, 0, "x has {got} elements, which are too many"}, {SMELT_SHAPE, 0, "the state has {got} elements, wanted {want}"}};

static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  int64_t n = shapes[0][0];
  int32_t status = WITH ? smelt_rt_start(rt, 1, 0, n) : SMELT_OK;
  if (status) return status;
  if (WITH && shapes[1][0] != n) return smelt_rt_fail(rt, 1, shapes[1][0], n);
  if (n > MOST_N) return smelt_rt_fail(rt, 0, n, MOST_N);
  slots[0] = 0, slots[1] = n;
  return SMELT_OK;
}

static int32_t model_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = slots[1], number = rt->entry - rt->model->entries;
  (void)weights, (void)arena;
  smelt_addr y = smelt_rt_output(rt, 0, &n), next = WITH ? smelt_rt_output(rt, 1, &n) : y;
  if (!y || !next) return SMELT_DEVICE;
  int32_t status = smelt_rt_launch(rt, (int32_t)(number / ENTRIES), (int64_t[]){in[0], WITH ? in[1] : 0, y, 1 + number % ENTRIES}, n, 0);
  return status || !WITH ? status : smelt_rt_copy(rt, next, y, n * 4);
}

#define ENTRY(called, where)                                                                                                          \
  {.name = called, .n_inputs = 1 + WITH, .n_outputs = 1 + WITH, .n_checks = 2, .n_slots = 2, .n_reads = WITH, .n_writes = WITH,       \
   .reads = numbers, .writes = numbers, .inputs = inputs, .outputs = outputs, .checks = checks, .homes = where, .plan = model_plan, .run = model_run}
static const smelt_entry_desc entries[] = {ENTRY("one", at1), ENTRY("two", at1), ENTRY("one", at2), ENTRY("two", at2), ENTRY("one", at0), ENTRY("two", at0)};
static const smelt_variant_desc variants[] = {
    {.name = "any", .units = 1, .states = at1}, {.name = "any", .units = 2, .states = at2}, {.name = "any"}};
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = ENTRIES * VARIANTS, .n_variants = VARIANTS, .n_kernels = VARIANTS, .n_states = WITH,
    .n_units = 2, .default_threads = 1, .name = "policies", .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels,
    .states = states, .units = units};

/* ---- a tree of sysfs ---- */
static const char *sysfs;
static void file(const char *name, const char *text) {
  char path[1024];
  snprintf(path, sizeof path, "%s/class/%s", sysfs, name);
  for (char *at = path + strlen(sysfs) + 1; (at = strchr(at, '/')); *at++ = '/') *at = 0, mkdir(path, 0700);
  FILE *f = fopen(path, "w");
  if (!f) abort();
  fprintf(f, "%s\n", text);
  fclose(f);
}
static void forget(const char *name) {
  char path[1024];
  snprintf(path, sizeof path, "%s/class/%s", sysfs, name);
  remove(path);
}
static uint64_t energy, energy_most;
static void use_energy(uint64_t more) {
  char text[32];
  if (!energy_most) return;
  energy = (energy + more) % energy_most;
  snprintf(text, sizeof text, "%llu", (unsigned long long)energy);
  file("powercap/b/energy_uj", text);
}

/* ---- the program: argv[1] is a folder for the tree ---- */
static int failures;
#define EXPECT(condition)                                                                                                               \
  do {                                                                                                                                  \
    if (!(condition)) failures++, printf("line %d: %s [%s] [%s]\n", __LINE__, #condition, smelt_error(session), smelt_error(NULL));      \
  } while (0)

static float total; /* of the state, in every element */
static int64_t held = -1; /* elements of the state; another number begins anew */
static smelt_status run_of(smelt_session *session, int64_t n, float added) {
  static float x[MOST_N + 1];
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n}, y = {0};
  for (int64_t i = 0; i < n; i++) x[i] = 3;
  if (WITH && n != held && smelt_reset(session) == SMELT_OK) total = 0, held = n;
  smelt_status status = smelt_run(session, &in, 1, &y, 1);
  if (status) return status;
  total = WITH ? total + 3 + added : 3 + added;
  for (int64_t i = 0; i < n; i++)
    if (((float *)y.data)[i] != total) return printf("y[%d] is %g, wanted %g\n", (int)i, (double)((float *)y.data)[i], (double)total), failures++, SMELT_INTERNAL;
  return SMELT_OK;
}
static smelt_status once(smelt_session *session, int64_t n) { return run_of(session, n, 1); }
static int many(smelt_session *session, int count, int64_t n) {
  for (int i = 0; i < count; i++)
    if (once(session, n)) return 0;
  return 1;
}

static smelt_unit_share share(smelt_session *session, size_t v) {
  smelt_unit_share s = {0};
  if (smelt_share(session, v, &s)) failures++, printf("smelt_share: %s\n", smelt_error(NULL));
  return s;
}
static uint64_t runs(smelt_session *session, size_t v) { return share(session, v).runs; }
static int notes(smelt_session *session, const char *text) {
  const char *note = smelt_policy_note(session);
  if (!text ? !note : note && strstr(note, text)) return 1;
  return printf("note: %s\n", note ? note : "none"), 0;
}

static void costs(uint64_t a, uint64_t b, uint64_t c) { /* ns of an element */
  per_element[0] = a, per_element[1] = b, per_element[2] = c;
  for (int v = 0; v < VARIANTS; v++) per_run[v] = 0, microjoules[v] = 0;
}

static smelt_session *opened(int32_t policy) {
  smelt_session *session = NULL;
  smelt_policy_options how = {.struct_size = sizeof how, .policy = policy, .limit = 80000, .cooled = 10000,
                              .zones = "cpu=cpu,soc;FIRST=gpu-first;*=gpu-sec"};
  total = 0, held = -1, home_ns = 0;
  EXPECT(smelt_open("nowhere", NULL, &session) == SMELT_OK && smelt_policy(session, &how) == SMELT_OK);
  return session;
}

static void test_static(void) {
  smelt_session *session = NULL;
  smelt_policy_options how = {.struct_size = sizeof how, .policy = SMELT_POLICY_LOAD};
  costs(400, 100, 1);
  total = 0, held = -1;
  EXPECT(smelt_open("nowhere", NULL, &session) == SMELT_OK && many(session, 40, 10));
  EXPECT(runs(session, 0) == 40 && !share(session, 1).open && share(session, 2).open && !runs(session, 1) && !runs(session, 2));
  EXPECT(share(session, 0).bound && !share(session, 0).expected_ns && notes(session, NULL) && smelt_share_count(session) == VARIANTS);
  EXPECT(!strcmp(share(session, 0).unit, "first") && !strcmp(share(session, 1).unit, "second") && !strcmp(share(session, 2).unit, "cpu"));
  EXPECT(smelt_policy(session, &how) == SMELT_OK && many(session, 40, 10) && runs(session, 2) > 30 && share(session, 1).open);
  how.policy = SMELT_POLICY_STATIC; /* where it is */
  EXPECT(smelt_policy(session, &how) == SMELT_OK && many(session, 10, 10) && runs(session, 2) > 40 && share(session, 2).bound);
  smelt_close(session);
}

/* Without a policy: the second device, where the first does not open, and the CPU where that fails in a run, too. */
static void test_static_failures(void) {
  smelt_session *session = NULL;
  total = 0, held = -1, first_refuses = 1;
  EXPECT(smelt_open("nowhere", NULL, &session) == SMELT_OK && many(session, 3, 10) && share(session, 1).bound && !strcmp(smelt_fallback(session), "first: never"));
  fake_breaks = 1;
  EXPECT(once(session, 10) == SMELT_OK && many(session, 3, 10) && share(session, 2).runs == 4 && strstr(smelt_fallback(session), "second device 'fake'"));
  EXPECT(!share(session, 0).open && !share(session, 1).open && !strcmp(share(session, 0).why, "first: never"));
  smelt_close(session);
  first_refuses = 0;
}

static void test_refusals(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  char longer[300];
  smelt_unit_share s;
  memset(longer, 'x', sizeof longer - 1), longer[sizeof longer - 1] = 0;
  const smelt_policy_options small = {.struct_size = 4}, none = {.struct_size = sizeof none, .policy = 4}, cold = {.struct_size = sizeof cold, .limit = -1},
                             zones = {.struct_size = sizeof zones, .zones = longer}, counter = {.struct_size = sizeof counter, .energy = longer};
  EXPECT(smelt_policy(session, NULL) == SMELT_INVALID && strstr(smelt_error(NULL), "smelt_policy: how is NULL"));
  EXPECT(smelt_policy(NULL, &none) == SMELT_INVALID && smelt_policy(session, &small) == SMELT_INVALID && strstr(smelt_error(NULL), "sizeof"));
  EXPECT(smelt_policy(session, &none) == SMELT_INVALID && strstr(smelt_error(NULL), "smelt_policy_kind"));
  EXPECT(smelt_policy(session, &cold) == SMELT_INVALID && strstr(smelt_error(NULL), "millidegrees"));
  EXPECT(smelt_policy(session, &zones) == SMELT_INVALID && strstr(smelt_error(NULL), "how->zones is longer"));
  EXPECT(smelt_policy(session, &counter) == SMELT_INVALID && strstr(smelt_error(NULL), "how->energy is longer"));
  EXPECT(smelt_share(session, VARIANTS, &s) == SMELT_INVALID && smelt_share(session, 0, NULL) == SMELT_INVALID && smelt_share(NULL, 0, &s) == SMELT_INVALID);
  EXPECT(!smelt_policy_note(NULL) && once(session, MOST_N + 1) == SMELT_SHAPE && strstr(smelt_error(session), "too many"));
  EXPECT(smelt_run(session, NULL, 3, NULL, 1) == SMELT_SHAPE && !runs(session, 0) && many(session, 3, 8));
  smelt_close(session);
}

/* A loaded unit's share shrinks, and comes back when the load ends. */
static void test_load(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  costs(100, 200, 400);
  EXPECT(many(session, 320, 100));
  EXPECT(runs(session, 0) >= 320 - 2 * 2 - 320 / EVERY && runs(session, 1) >= 2 && runs(session, 2) >= 2); /* two trials of each */
  EXPECT(share(session, 0).expected_ns == 10000 && share(session, 1).expected_ns == 20000 && share(session, 2).expected_ns == 40000);
  EXPECT(share(session, 1).explorations + share(session, 2).explorations <= 320 / EVERY && !share(session, 0).explorations);
  per_element[0] = 1000; /* others have it now */
  uint64_t before = runs(session, 0), instead = runs(session, 1);
  EXPECT(many(session, 320, 100) && runs(session, 0) - before <= 3 + 320 / EVERY && runs(session, 1) - instead >= 320 - 3 - 2 * 320 / EVERY);
  EXPECT(share(session, 1).bound || share(session, 0).explorations);
  per_element[0] = 100;
  before = runs(session, 0); /* at the latest the second exploration from here is of it */
  EXPECT(many(session, 320, 100) && runs(session, 0) - before >= 320 - 2 * EVERY - 320 / EVERY - 2);
  before = runs(session, 0);
  per_run[0] = 1000000; /* one run that is disturbed */
  EXPECT(once(session, 100) == SMELT_OK);
  per_run[0] = 0;
  EXPECT(many(session, 100, 100) && runs(session, 0) - before >= 100 - 100 / EVERY - 1);
  smelt_close(session);
}

/* However slow a unit is, finding that out again and again costs no more than its part. */
static void test_exploring_is_bounded(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  enum { RUNS = 3000, N = 100 };
  costs(100, 100000, 3000);
  EXPECT(many(session, 6, N));
  uint64_t begin = now_ns, least = (uint64_t)RUNS * N * per_element[0], each = (uint64_t)N * (per_element[1] + per_element[2]);
  EXPECT(many(session, RUNS, N) && now_ns - begin <= least + (now_ns - begin) / SHARE + each);
  EXPECT(share(session, 1).explorations >= 1 && share(session, 2).explorations >= 1);
  EXPECT(share(session, 1).explorations + share(session, 2).explorations <= RUNS / EVERY);
  smelt_close(session);
}

/* What is known of some shapes says what others will take; each size gets the unit that suits it. */
static void test_shapes(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  costs(10, 1000, 100);
  per_run[0] = 20000; /* a launch */
  for (int i = 0; i < 100; i++) EXPECT(once(session, 8) == SMELT_OK && once(session, 2048) == SMELT_OK);
  uint64_t device = runs(session, 0), cpu = runs(session, 2);
  for (int i = 0; i < 100; i++) EXPECT(once(session, 8) == SMELT_OK && once(session, 2048) == SMELT_OK);
  EXPECT(runs(session, 0) - device >= 100 - 200 / EVERY - 1 && runs(session, 2) - cpu >= 100 - 200 / EVERY - 1);
  device = runs(session, 0);
  EXPECT(once(session, 1024) == SMELT_OK && runs(session, 0) == device + 1); /* between the two */
  uint64_t worst = runs(session, 1); /* of it nobody wants to know at each shape how slow it is */
  for (int64_t n = 9; n < 2048; n += 5) EXPECT(once(session, n) == SMELT_OK);
  EXPECT(runs(session, 1) - worst <= 2048 / 5 / EVERY + 1);
  device = runs(session, 0);
  for (int i = 0; i < 64; i++) EXPECT(once(session, 1900) == SMELT_OK); /* never seen */
  EXPECT(runs(session, 0) - device >= 64 - 2 - 2);
  EXPECT(once(session, 0) == SMELT_OK && once(session, 0) == SMELT_OK);
  smelt_close(session);
}

static void test_entries(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD), *two = smelt_entry(session, "two");
  costs(100, 200, 400);
  EXPECT(many(session, 64, 10));
  uint64_t slow = runs(session, 2);
  for (int i = 0; i < 6; i++) EXPECT(run_of(two, 10, 2) == SMELT_OK); /* of an entry that is new nothing is known */
  EXPECT(runs(session, 2) - slow == 2);
  uint64_t fast = runs(session, 0);
  for (int i = 0; i < 100; i++) EXPECT(run_of(two, 10, 2) == SMELT_OK && once(session, 10) == SMELT_OK);
  EXPECT(runs(session, 0) - fast >= 200 - 200 / EVERY - 1 && runs(two, 0) == runs(session, 0));
  smelt_close(session);
  session = opened(SMELT_POLICY_LOAD), two = smelt_entry(session, "two");
  reversed = 1;
  for (int i = 0; i < 100; i++) EXPECT(run_of(two, 10 + i % 2, 2) == SMELT_OK && once(session, 10 + i % 2) == SMELT_OK);
  EXPECT(runs(session, 0) >= 90 && runs(session, 2) >= 90);
  fast = runs(session, 0), slow = runs(session, 2);
  EXPECT(run_of(two, 512, 2) == SMELT_OK && runs(session, 2) == slow + 1); /* by its own sizes */
  EXPECT(once(session, 512) == SMELT_OK && runs(session, 0) == fast + 1);
  reversed = 0;
  smelt_close(session);
}

/* A unit that fails is left for good; the run is done again. */
static void test_failures(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  costs(200, 100, 400);
  EXPECT(many(session, 40, 10) && share(session, 1).bound);
  fake_breaks = 1;
  EXPECT(once(session, 10) == SMELT_OK && !fake_breaks);
  EXPECT(strstr(share(session, 1).why, "failed with code -9") && !share(session, 1).open && strstr(smelt_fallback(session), "failed with code -9"));
  uint64_t before = runs(session, 1);
  EXPECT(many(session, 200, 10) && runs(session, 1) == before && runs(session, 0) > 180); /* one before it in the order */
  fake_breaks = 1;
  EXPECT(once(session, 10) == SMELT_OK && share(session, 2).bound && many(session, 100, 10) && runs(session, 2) > 100);
  EXPECT(once(session, MOST_N + 1) == SMELT_SHAPE && once(session, 10) == SMELT_OK && share(session, 0).why[0]);
  smelt_close(session);
  session = opened(SMELT_POLICY_LOAD); /* one that does not open when it is first wanted */
  refuses_to_open = 1;
  EXPECT(many(session, 40, 10) && !runs(session, 1) && !strcmp(share(session, 1).why, "second: not today"));
  refuses_to_open = 0;
  EXPECT(many(session, 40, 10) && !runs(session, 1) && strstr(smelt_fallback(session), "not today"));
  smelt_close(session);
}

/* A unit that lacks memory for some shapes is left for them, and tried again later; others know nothing of it. */
static void test_little_memory(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  costs(100, 200, 400);
  EXPECT(many(session, 40, 100));
  fake_allowed = 4096;
  EXPECT(once(session, 2048) == SMELT_OK && share(session, 2).bound);
  EXPECT(strstr(share(session, 0).why, "could not do a run of these shapes") && !smelt_fallback(session));
  uint64_t before = runs(session, 0);
  EXPECT(many(session, 20, 100) && runs(session, 0) - before >= 20 - 1); /* small ones still fit */
  fake_allowed = SIZE_MAX;
  before = runs(session, 0);
  EXPECT(many(session, 20, 2048) && (WITH || runs(session, 0) == before)); /* one that has a state has other shapes than one that starts */
  EXPECT(many(session, 200, 2048) && runs(session, 0) - before >= 100 && once(session, 2048) == SMELT_OK && !share(session, 0).why[0]);
  smelt_close(session);
}

/* Tensors of the caller's keep the session where they lie; so does a profile. */
static void test_what_stays(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  static float values[10];
  int64_t n = 10;
  costs(100, 200, 400);
  EXPECT(many(session, 40, 10) && share(session, 0).bound && smelt_input_unit(session, 0) == 1);
  DLTensor t = {.data = values, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n}, host = t;
  EXPECT(smelt_tensor(session, 2, sizeof values, &t) == SMELT_INVALID && strstr(smelt_error(NULL), "is not one that the session is bound to"));
  EXPECT(smelt_tensor(session, 1, sizeof values, &t) == SMELT_OK && smelt_tensor_copy(session, &t, &host) == SMELT_OK);
  costs(10000, 200, 400);
  uint64_t before = runs(session, 0);
  DLTensor y = {0};
  EXPECT(smelt_run(session, &t, 1, &y, 1) == SMELT_OK);
  if (WITH) total += 1; /* x is 0 */
  EXPECT(many(session, 50, 10) && runs(session, 0) - before == 51 && notes(session, "where tensors of smelt_tensor lie"));
  fake_breaks = 1;
  EXPECT(once(session, 10) == SMELT_DEVICE && !share(session, 0).why[0] && once(session, 10) == SMELT_OK);
  EXPECT(smelt_tensor_free(session, &t) == SMELT_OK && many(session, 4, 10) && !share(session, 0).bound && notes(session, NULL));
  EXPECT(smelt_profile(session, 1) == SMELT_OK);
  costs(1, 20000, 400);
  before = runs(session, 1);
  EXPECT(many(session, 100, 10) && runs(session, 1) - before == 100 && notes(session, "while it is profiled or probed"));
  EXPECT(smelt_profile(session, 0) == SMELT_OK && many(session, 100, 10) && runs(session, 0) > 60);
  smelt_close(session);
}

/* A session of smelt_fork goes by what is known; a child of fork runs on the CPU. */
static void test_forks(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD), *other = NULL;
  costs(100, 200, 400);
  EXPECT(many(session, 40, 10) && smelt_fork(session, &other) == SMELT_OK);
  float kept = total;
  EXPECT(share(other, 0).open && !share(other, 1).open && many(other, 10, 10) && runs(other, 0) + runs(other, 1) + runs(other, 2) == 10 && runs(other, 0) >= 9);
  total = kept;
  EXPECT(many(session, 10, 10));
  smelt_close(other);
  costs(100, 200, 10);
  EXPECT(many(session, 100, 10) && share(session, 2).bound && smelt_fork(session, &other) == SMELT_OK);
  EXPECT(share(other, 2).bound && !share(other, 0).open && !share(other, 1).open);
  smelt_close(other);
  costs(100, 200, 400);
  EXPECT(many(session, 100, 10) && share(session, 0).bound);
#ifndef NO_FORK
  if (WITH) EXPECT(smelt_reset(session) == SMELT_OK);
  total = 0;
  smelt_session *fresh = opened(SMELT_POLICY_LOAD);
  fflush(stdout);
  pid_t pid = fork();
  if (!pid) {
    uint64_t before = runs(session, 2);
    int good = many(session, 5, 10) && runs(session, 2) - before == 5;
    smelt_close(session);
    held = -1; /* no driver is opened in a child */
    good = good && many(fresh, 5, 10) && runs(fresh, 2) == 5 && !share(fresh, 1).open;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(pid, &status, 0);
  EXPECT(status == 0 && many(session, 5, 10));
  smelt_close(fresh);
#endif
  smelt_close(session);
}

/* As a stage of a stream, whose outputs change hands with the memory of whichever variant ran. */
static void test_streams(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  smelt_stream *stream = NULL;
  smelt_stage stage;
  float x[16];
  int64_t n = 16;
  const smelt_wire pushed = {-1, 0}, popped = {0, 0};
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n}, y;
  costs(100, 99, 101);
  EXPECT(smelt_as_stage(session, &stage) == SMELT_OK);
  stage.inputs = &pushed;
  const smelt_stream_options options = {.struct_size = sizeof options, .stage_size = sizeof stage, .stages = &stage, .n_stages = 1, .n_pushed = 1,
                                        .popped = &popped, .n_popped = 1};
  EXPECT(smelt_start_stream(&options, &stream) == SMELT_OK);
  for (int i = 0; i < 200; i++) {
    if (i == 100) costs(99, 1000, 101); /* nothing runs now: the last item was popped */
    for (int k = 0; k < n; k++) x[k] = (float)(i + k);
    EXPECT(smelt_push(stream, &in, 1, -1) == SMELT_OK && smelt_pop(stream, &y, 1, -1) == SMELT_OK);
    total = WITH ? total + (float)i + 1 : (float)i + 1;
    for (int k = 0; k < n; k++) EXPECT(((float *)y.data)[k] == total + (float)k * (WITH ? (float)(i + 1) : 1));
  }
  smelt_end_stream(stream);
  EXPECT(runs(session, 0) + runs(session, 1) + runs(session, 2) == 200 && runs(session, 0) && runs(session, 1) && runs(session, 2));
  smelt_close(session);
}

static void *worker(void *session) {
  for (int done = 0; done < 200;) {
    float x[4] = {0};
    int64_t n = 4;
    smelt_unit_share s;
    DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n}, y = in;
    float to[4];
    y.data = to;
    done += smelt_run(session, &in, 1, &y, 1) == SMELT_OK;
    smelt_share(session, (size_t)done % VARIANTS, &s);
    smelt_policy_note(session);
  }
  return NULL;
}

static void test_threads(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  sm_thread threads[3];
  costs(100, 200, 400);
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, worker, session);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  EXPECT(runs(session, 0) + runs(session, 1) + runs(session, 2) == 600 && runs(session, 0) > 560);
  smelt_close(session);
}

/* ---- with what the system tells ---- */
static void later(void) { now_ns += 1100000000u; }
static void heat(const char *temp) { file("thermal/thermal_zone7/temp", temp), later(); }

static void test_heat(void) {
  smelt_session *session = opened(SMELT_POLICY_THERMAL);
  costs(100, 200, 400);
  EXPECT(many(session, 40, 10) && share(session, 0).bound && notes(session, "no thermal zone tells the heat of first"));
  file("thermal/thermal_zone0/type", "cpu-thermal"), file("thermal/thermal_zone0/temp", "50000");
  file("thermal/thermal_zone7/type", "GPU-first-1");
  file("thermal/thermal_zone8/type", "gpu-second"), file("thermal/thermal_zone8/temp", "40000");
  file("thermal/thermal_zone9/type", "other"), file("thermal/thermal_zone9/temp", "99000");
  heat("79999");
  uint64_t before = runs(session, 0);
  EXPECT(many(session, 30, 10) && runs(session, 0) - before >= 29 && share(session, 0).millidegrees == 79999 && notes(session, NULL));
  file("thermal/thermal_zone7/temp", "80001"); /* not looked at yet */
  EXPECT(once(session, 10) == SMELT_OK && share(session, 0).millidegrees == 79999);
  heat("80001");
  before = runs(session, 0);
  EXPECT(many(session, 100, 10) && runs(session, 0) == before && runs(session, 1) >= 90 && strstr(share(session, 0).why, "was at 80.0 degrees, limit 80.0"));
  heat("70001"); /* not cool enough */
  EXPECT(many(session, 50, 10) && runs(session, 0) == before);
  heat("70000");
  EXPECT(many(session, 50, 10) && runs(session, 0) - before >= 48 && !share(session, 0).why[0]);
  heat("79000"); /* and may become as warm as before */
  EXPECT(once(session, 10) == SMELT_OK && many(session, 20, 10) && runs(session, 0) - before >= 65);
  file("thermal/thermal_zone0/temp", "99000"), file("thermal/thermal_zone8/temp", "99000"), heat("99000");
  EXPECT(many(session, 40, 10) && runs(session, 0) - before >= 100 && notes(session, "all units are above their limits"));
  heat("4000000"); /* a sensor that is absent */
  EXPECT(many(session, 2, 10) && notes(session, "no thermal zone tells the heat of first"));
  smelt_close(session);
  smelt_policy_options how = {.struct_size = sizeof how, .policy = SMELT_POLICY_THERMAL}; /* by the zones' own limits */
  EXPECT(smelt_open("nowhere", NULL, &session) == SMELT_OK && smelt_policy(session, &how) == SMELT_OK);
  total = 0, held = -1;
  file("thermal/thermal_zone7/trip_point_0_type", "critical"), file("thermal/thermal_zone7/trip_point_0_temp", "60000");
  file("thermal/thermal_zone7/trip_point_1_type", "passive"), file("thermal/thermal_zone7/trip_point_1_temp", "70000");
  file("thermal/thermal_zone7/trip_point_2_type", "passive"), file("thermal/thermal_zone7/trip_point_2_temp", "95000");
  file("thermal/thermal_zone0/temp", "50000"), file("thermal/thermal_zone8/temp", "40000"), heat("69000");
  EXPECT(many(session, 20, 10) && share(session, 0).bound);
  heat("71000"); /* "gpu" stands for both devices here */
  EXPECT(many(session, 20, 10) && !share(session, 0).bound && !share(session, 1).bound && strstr(share(session, 1).why, "limit 70.0"));
  smelt_close(session);
}

static void test_battery(void) {
  smelt_session *session = opened(SMELT_POLICY_BATTERY);
  costs(400, 100, 200);
  EXPECT(many(session, 64, 10) && runs(session, 1) >= 54 && notes(session, "does not tell whether a battery feeds it"));
  file("power_supply/AC/type", "Mains"), file("power_supply/AC/online", "0"); /* a machine without a battery */
  file("power_supply/hid/type", "Battery"), file("power_supply/hid/scope", "Device"), file("power_supply/hid/status", "Discharging");
  later();
  EXPECT(once(session, 10) == SMELT_OK && notes(session, "does not tell whether a battery feeds it"));
  file("power_supply/BAT0/type", "Battery"), file("power_supply/BAT0/status", "Charging"), file("power_supply/AC/online", "1"), later();
  uint64_t before = runs(session, 1);
  EXPECT(many(session, 20, 10) && runs(session, 1) - before >= 19 && notes(session, "on mains, as load"));
  file("power_supply/AC/online", "0"), file("power_supply/BAT0/status", "Discharging"), later();
  before = runs(session, 0); /* the first in the order, though it is the slowest */
  EXPECT(many(session, 100, 10) && runs(session, 0) - before == 100 && notes(session, "in the bundle's order"));
  file("power_supply/BAT0/status", "Unknown"), later();
  EXPECT(many(session, 10, 10) && runs(session, 0) - before == 110);
  file("power_supply/AC/online", "1"), later();
  before = runs(session, 0);
  EXPECT(many(session, 50, 10) && runs(session, 0) - before <= 2 && share(session, 1).bound);
  smelt_close(session);
  energy_most = 5000, energy = 0; /* it begins at 0 again and again */
  file("power_supply/AC/online", "0"), file("power_supply/BAT0/status", "Discharging");
  file("powercap/a/name", "package-0"), file("powercap/a/energy_uj", "0");
  file("powercap/b/name", "psys"), file("powercap/b/max_energy_range_uj", "5000"), use_energy(0);
  session = opened(SMELT_POLICY_BATTERY);
  costs(40000, 10000, 20000); /* 10 elements: 0.4, 0.1, 0.2 ms */
  microjoules[0] = 900, microjoules[1] = 1000, microjoules[2] = 300;
  EXPECT(many(session, 25 + 100 + 50, 10)); /* 10 ms of each */
  before = runs(session, 2);
  EXPECT(many(session, 100, 10) && runs(session, 2) - before >= 100 - 100 / EVERY - 1 && notes(session, "by the energy of"));
  uint64_t uj = share(session, 2).expected_uj;
  EXPECT(uj >= 250 && uj <= 350 && share(session, 1).expected_uj > 900 && share(session, 1).expected_uj < 1100);
  microjoules[2] = 4000; /* its share shrinks as well */
  EXPECT(many(session, 400, 10));
  before = runs(session, 0);
  EXPECT(many(session, 100, 10) && runs(session, 0) - before >= 100 - 100 / EVERY - 1);
  smelt_close(session);
  session = opened(SMELT_POLICY_BATTERY);
  EXPECT(many(session, 3, 10) && notes(session, "by the energy of"));
  energy_most = 0;
  forget("powercap/b/energy_uj"); /* it tells no more */
  before = runs(session, 0);
  EXPECT(many(session, 50, 10) && runs(session, 0) - before == 50 && notes(session, "in the bundle's order"));
  smelt_close(session);
}

#ifdef WITH_STATE
/* The state goes with the session, for a price; where it cannot, the session stays. */
static void test_state(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  enum { N = 10 };
  smelt_memory memory;
  costs(100, 200, 400);
  EXPECT(many(session, 64, N) && share(session, 0).bound && smelt_memory_stats(session, &memory) == SMELT_OK && memory.state_capacity >= 4 * N);
  costs(1000, 100, 400);
  EXPECT(many(session, 64, N) && share(session, 1).bound); /* it takes no time: at once */
  costs(1000, 1000, 100);
  EXPECT(many(session, 64, N) && runs(session, 2) > 50 && smelt_trim(session) == SMELT_OK && many(session, 3, N));
  costs(100, 400, 800);
  EXPECT(many(session, 128, N) && share(session, 0).bound);
  EXPECT(smelt_trim(session) == SMELT_OK && smelt_memory_stats(session, &memory) == SMELT_OK && memory.state_capacity <= MOST_N * 4); /* the value's */
  refuses_state = 1;
  costs(500, 100, 800);
  EXPECT(many(session, 40, N) && share(session, 0).bound && notes(session, "does not give the state back: first device 'fake': read of a state"));
  refuses_state = 0;
  EXPECT(many(session, 2, N) && share(session, 1).bound && notes(session, NULL));
  fake_breaks = 1; /* what fails next is the run */
  EXPECT(once(session, N) == SMELT_OK && !share(session, 1).bound && share(session, 1).why[0]); /* the state was given back after that */
  fake_breaks = 1, fake_lost = 1;
  EXPECT(smelt_reset(session) == SMELT_OK && (total = 0, 1) && many(session, 1, N) && share(session, 2).bound && share(session, 0).why[0]);
  fake_breaks = 0, fake_lost = 0;
  smelt_close(session);
  session = opened(SMELT_POLICY_LOAD);
  costs(100, 200, 400);
  EXPECT(many(session, 40, N) && share(session, 0).bound);
  fake_breaks = 1, fake_lost = 1; /* a device that is lost takes the state with it */
  EXPECT(once(session, N) == SMELT_DEVICE && strstr(smelt_error(session), "failed with code -9") && once(session, N) == SMELT_DEVICE);
  fake_breaks = 0, fake_lost = 0;
  smelt_close(session);
}

/* What a state takes to come back is paid once staying has cost as much. */
static void test_price_of_moving(void) {
  smelt_session *session = opened(SMELT_POLICY_LOAD);
  enum { N = 10, LOSS = 500, MOVE = 20000 };
  home_ns = MOVE;
  costs(50, 100, 1000000); /* the third has its part of explorations used up at once */
  EXPECT(many(session, 128, N) && share(session, 0).bound);
  uint64_t explored = share(session, 2).explorations, runs_here = runs(session, 0);
  per_element[0] = 150;
  for (int i = 0; i < 256 && share(session, 0).bound; i++) EXPECT(once(session, N) == SMELT_OK);
  runs_here = runs(session, 0) - runs_here; /* a few until it is believed, and then 80 */
  EXPECT(runs_here >= 2 * MOVE / LOSS && runs_here <= 2 * MOVE / LOSS + 16 && share(session, 1).bound && share(session, 2).explorations == explored);
  EXPECT(many(session, 10, N) && share(session, 1).bound);
  uint64_t runs_there = runs(session, 1);
  per_element[1] = 250; /* and for the way back again, though twice as much is lost now */
  for (int i = 0; i < 256 && share(session, 1).bound; i++) EXPECT(once(session, N) == SMELT_OK);
  runs_there = runs(session, 1) - runs_there;
  EXPECT(runs_there >= MOVE / LOSS - 2 && runs_there <= MOVE / LOSS + 16 && share(session, 0).bound);
  costs(400, 10, 1000000);
  EXPECT(many(session, 200, N) && share(session, 1).bound);
  const smelt_policy_options battery = {.struct_size = sizeof battery, .policy = SMELT_POLICY_BATTERY}; /* the order is not weighed */
  EXPECT(smelt_policy(session, &battery) == SMELT_OK && once(session, N) == SMELT_OK && share(session, 0).bound && notes(session, "in the bundle's order"));
  smelt_close(session);
}
#endif

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0); /* a sanitizer ends the process without it */
  if (argc < 2) return 2;
  sysfs = argv[1];
  setenv("SMELT_SYSFS", sysfs, 1);
  first = second = smelt_driver_fake;
  first.name = "first", second.name = "second", first.open = open_first, second.open = open_second;
  first.download = second.download = slow_download;
  test_static();
  test_static_failures();
  test_refusals();
  test_load();
  test_exploring_is_bounded();
  test_shapes();
  test_entries();
  test_failures();
  test_little_memory();
  test_what_stays();
  test_forks();
  test_streams();
  test_threads();
  test_heat();
  test_battery();
#ifdef WITH_STATE
  test_state();
  test_price_of_moving();
#endif
  if (!failures) puts("OK");
  return 0;
}
