/* probe.c: drives the public functions of a session over model.c and says which expectation failed; no libc headers needed.
 *
 * usage: probe BUNDLE_DIR [what]; what: all (default), open (print the error of smelt_open), library, device, deny.
 * SMELT_STATIC: the model is linked in; else BUNDLE_DIR/libmodel.so is loaded, whose functions are model_open and so on. */
#ifndef SMELT_PREFIX
#define SMELT_PREFIX smelt
#endif
#include "smelt.h"
#include "smelt_libc.h"

int printf(const char *, ...) __attribute__((format(printf, 1, 2)));
int fork(void);
int puts(const char *);

static int failures;
#define EXPECT(condition)                                                             \
  do {                                                                                \
    if (!(condition)) {                                                               \
      failures++;                                                                     \
      printf("line %d: %s [%s]\n", __LINE__, #condition, session ? E(session) : E(0)); \
    }                                                                                 \
  } while (0)

#ifdef SMELT_STATIC
#define API(name) name
#else
static void *library;
static void *find(const char *name) {
  char symbol[64];
  snprintf(symbol, sizeof symbol, "model%s", name + strlen("smelt"));
  void *at = dlsym(library, symbol);
  if (!at) printf("missing: %s\n", name), exit(1);
  return at;
}
#define API(name) ((__typeof__(&name))find(#name))
#endif
static const char *E(const smelt_session *s) { return API(smelt_error)(s); }

enum { LARGEST = 600 * 70 };
static float x[LARGEST + 1], y[70 + 1];
static const float w[4] = {1, -2, 3, -4};

static DLTensor tensor(void *data, int32_t rank, int64_t *shape) {
  return (DLTensor){.data = data, .device = {1, 0}, .ndim = rank, .dtype = {2, 32, 1}, .shape = shape};
}

static void fill(int64_t n, int64_t m) {
  for (int64_t i = 0; i < n * m; i++) x[i] = (float)(i % 13) - 6;
  for (int64_t j = 0; j < m; j++) y[j] = (float)(j % 5) - 2;
}

/* Are the outputs what model.c promises? All values are small integers, so floats are exact. */
static int right(const DLTensor *out, int64_t n, int64_t m) {
  int64_t k = 0;
  const float *z = out[0].data, *s = out[1].data, *p = out[2].data;
  if (out[0].ndim != 2 || out[0].shape[0] != n || out[0].shape[1] != m || out[1].ndim != 1 || out[1].shape[0] != n) return 0;
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
    for (int64_t j = 0; j < m; j++) {
      float t = 2 * x[i * m + j] + y[j] + w[j % 4];
      sum += t;
      if (z[i * m + j] != t) return 0;
      if (t > 0 && (k >= out[2].shape[0] || p[k++] != t)) return 0;
    }
    if (s[i] != sum) return 0;
  }
  return out[2].shape[0] == k;
}

static smelt_status go(smelt_session *session, int64_t n, int64_t m, DLTensor *out, size_t n_out) {
  int64_t xs[] = {n, m}, ys[] = {m};
  DLTensor in[] = {tensor(n && m ? x : NULL, 2, xs), tensor(m ? y : NULL, 1, ys)};
  fill(n, m);
  for (size_t i = 0; i < n_out; i++) out[i] = (DLTensor){0};
  return API(smelt_run)(session, in, 2, out, n_out);
}

static int has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static void test_queries(smelt_session *session) {
  EXPECT(API(smelt_input_count)(session) == 2 && API(smelt_output_count)(session) >= 3);
  EXPECT(strcmp(API(smelt_input_name)(session, 1), "y") == 0 && strcmp(API(smelt_output_name)(session, 2), "p") == 0);
  EXPECT(API(smelt_input_name)(session, 2) == NULL && API(smelt_output_rank)(session, 9) == -1);
  EXPECT(API(smelt_input_rank)(session, 0) == 2 && API(smelt_output_rank)(session, 0) == 2);
  EXPECT(API(smelt_input_type)(session, 0).bits == 32 && API(smelt_output_type)(session, 0).code == 2);
  EXPECT(API(smelt_kernel_count)(session) == 4);
}

static void test_shapes(smelt_session *session, size_t n_out) {
  static const int64_t sizes[][2] = {{1, 1}, {600, 70}, {7, 5}, {3, 70}, {0, 4}, {5, 0}, {0, 0}, {599, 33}, {2, 2}};
  DLTensor out[4];
  smelt_memory before, after;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    EXPECT(go(session, sizes[i][0], sizes[i][1], out, n_out) == SMELT_OK);
    EXPECT(right(out, sizes[i][0], sizes[i][1]));
    API(smelt_memory_stats)(session, &after);
    uint64_t late = (uint64_t)out[2].shape[0] * 4; /* the positive elements, in an arena of their own */
    EXPECT(after.arena_bytes == (uint64_t)(sizes[i][0] * sizes[i][1] * 4 + 8) + late && after.arena_capacity >= after.arena_bytes);
  }
  API(smelt_memory_stats)(session, &before);
  for (int64_t i = 0; i < 200; i++) { /* shapes change, memory does not */
    EXPECT(go(session, 40 + i, 30 + i % 40, out, n_out) == SMELT_OK && right(out, 40 + i, 30 + i % 40));
  }
  API(smelt_memory_stats)(session, &after);
  EXPECT(after.allocations == before.allocations && after.arena_capacity == before.arena_capacity);
  EXPECT(after.runs == before.runs + 200 && after.weights_bytes == 16);
  EXPECT(API(smelt_trim)(session) == SMELT_OK);
  API(smelt_memory_stats)(session, &after);
  EXPECT(after.arena_capacity == 0 && after.output_capacity == 0);
  EXPECT(go(session, 3, 3, out, n_out) == SMELT_OK && right(out, 3, 3));
}

/* model.c refuses to plan n = 23 a second time. */
static void test_plan_is_kept(smelt_session *session, size_t n_out) {
  DLTensor out[4];
  for (int i = 0; i < 3; i++) EXPECT(go(session, 23, 5, out, n_out) == SMELT_OK && right(out, 23, 5));
  EXPECT(go(session, 22, 5, out, n_out) == SMELT_OK && go(session, 23, 5, out, n_out) == SMELT_INTERNAL);
  EXPECT(go(session, 23, 5, out, n_out) == SMELT_INTERNAL); /* a plan that failed is not kept */
  EXPECT(go(session, 22, 5, out, n_out) == SMELT_OK && right(out, 22, 5));
}

static void test_caller_memory(smelt_session *session) {
  static float z[6 * 5 + 1], s[6], odd[6 * 5 * 4 + 8];
  int64_t xs[] = {6, 5}, ys[] = {5}, zs[] = {6, 5}, ss[] = {6}, wrong[] = {6, 4};
  fill(6, 5);
  DLTensor in[] = {tensor(x, 2, xs), tensor(y, 1, ys)};
  DLTensor out[] = {tensor(z, 2, zs), tensor(s, 1, ss), {0}};
  z[30] = 123;
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_OK && right(out, 6, 5));
  EXPECT(out[0].data == z && out[0].shape == zs && z[30] == 123 && out[2].data);
  /* byte_offset, and addresses that are not even aligned to an element */
  char *at = (char *)odd + 1;
  memcpy(at, x, 30 * 4);
  in[0].data = odd, in[0].byte_offset = 1;
  char *to = (char *)odd + 30 * 4 + 3;
  out[0] = tensor(to, 2, zs), out[2] = (DLTensor){0};
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_OK);
  EXPECT(memcmp(to, z, 30 * 4) == 0);
  in[0] = tensor(x, 2, xs);
  out[0] = tensor(z, 2, wrong), out[2] = (DLTensor){0};
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_SHAPE && has(E(session), "output 'z' axis 1: your tensor has 4, the model computes 5"));
  EXPECT(out[2].data == NULL); /* untouched by a failure */
  int64_t same_as_compact[] = {5, 1}, transposed[] = {1, 6};
  in[0].strides = same_as_compact, out[0] = (DLTensor){0}, out[1] = (DLTensor){0}, out[2] = (DLTensor){0};
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_OK && right(out, 6, 5));
  in[0].strides = transposed;
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_INVALID && has(E(session), "input 'x': its strides"));
}

/* What is written lies in what is read, or written twice: refused with both names, and nothing was touched. */
static void test_overlaps(smelt_session *session) {
  static float room[80];
  int64_t xs[] = {6, 5}, ys[] = {5}, zs[] = {6, 5}, ss[] = {6}, none[] = {0, 5}, no_rows[] = {0};
  DLTensor in[] = {tensor(room, 2, xs), tensor(room + 70, 1, ys)}, out[3];
  char *odd = (char *)room + 1;
  const struct {
    void *z, *s;
    const char *text;
  } rows[] = {{room, NULL, "output 'z' and input 'x'"}, {room + 29, NULL, "output 'z' and input 'x'"},
              {room + 30, room + 59, "output 's' and output 'z'"}, {NULL, room + 5, "output 's' and input 'x'"},
              {odd + 4 * 29, NULL, "output 'z' and input 'x'"}, {room + 41, NULL, "output 'z' and input 'y'"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fill(6, 5);
    memcpy(room, x, sizeof room), memcpy(room + 70, y, 5 * 4), room[30] = room[59] = 77;
    for (int k = 0; k < 3; k++) out[k] = (DLTensor){0};
    if (rows[i].z) out[0] = tensor(rows[i].z, 2, zs);
    if (rows[i].s) out[1] = tensor(rows[i].s, 1, ss);
    EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_INVALID && has(E(session), rows[i].text));
    EXPECT(memcmp(room, x, 30 * 4) == 0 && room[30] == 77 && room[59] == 77);
  }
  out[0] = tensor(room + 30, 2, zs), out[1] = tensor(room + 60, 1, ss), out[2] = (DLTensor){0}; /* side by side */
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_OK && right(out, 6, 5));
  in[0] = tensor(room, 2, none), out[0] = tensor(room, 2, none), out[1] = tensor(room, 1, no_rows), out[2] = (DLTensor){0};
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_OK); /* what is empty shares nothing */
  in[0] = tensor(UINTPTR_MAX - 7 + (char *)0, 2, xs), out[0] = out[1] = out[2] = (DLTensor){0};
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_INVALID && has(E(session), "leaves the address space"));
  in[0] = tensor(room, 2, xs), in[0].byte_offset = UINT64_MAX - 8;
  EXPECT(API(smelt_run)(session, in, 2, out, 3) == SMELT_INVALID && has(E(session), "leaves the address space"));
  /* the session's own memory: written again in place, but not while it is read, nor for two outputs */
  EXPECT(go(session, 6, 5, out, 3) == SMELT_OK);
  DLTensor again[] = {out[0], tensor(y, 1, ys)}, next[3] = {{0}};
  EXPECT(API(smelt_run)(session, again, 2, next, 3) == SMELT_INVALID && has(E(session), "output 'z' and input 'x'"));
  next[0] = tensor(room, 2, zs), next[1] = next[2] = (DLTensor){0}; /* into the caller's: the old one may be read */
  EXPECT(API(smelt_run)(session, again, 2, next, 3) == SMELT_OK);
  again[0] = tensor(x, 2, xs);
  EXPECT(go(session, 6, 5, out, 3) == SMELT_OK);
  EXPECT(API(smelt_run)(session, again, 2, out, 3) == SMELT_OK && right(out, 6, 5));
  out[0] = (DLTensor){0}, out[1].data = (char *)out[2].data;
  EXPECT(API(smelt_run)(session, again, 2, out, 3) == SMELT_INVALID && has(E(session), "share memory"));
}

static void test_refusals(smelt_session *session, size_t n_out) {
  int64_t xs[] = {2, 3}, ys[] = {3}, four[] = {4}, negative[] = {-1, 3}, vast[] = {INT32_MAX, INT32_MAX};
  int64_t endless[] = {0, INT64_MAX};
  DLTensor good[] = {tensor(x, 2, xs), tensor(y, 1, ys)}, in[2], out[4] = {{0}};
  const struct {
    int32_t which, rank, status;
    int64_t *shape;
    DLDataType type;
    int32_t device;
    void *data;
    const char *text;
  } rows[] = {
      {1, 1, SMELT_SHAPE, four, {2, 32, 1}, 1, y, "input 'y' axis 0: got 4, wanted 3"},
      {0, 1, SMELT_SHAPE, ys, {2, 32, 1}, 1, x, "input 'x': your tensor has 1 dims, the model wants 2"},
      {0, 2, SMELT_SHAPE, xs, {2, 64, 1}, 1, x, "input 'x': your tensor is float64, the model wants float32"},
      {1, 1, SMELT_SHAPE, ys, {0, 32, 1}, 1, y, "input 'y': your tensor is int32"},
      {0, 2, SMELT_SHAPE, negative, {2, 32, 1}, 1, x, "input 'x' axis 0: got -1"},
      {0, 2, SMELT_SHAPE, vast, {2, 32, 1}, 1, x, "input 'x': its dims multiply"},
      {0, 2, SMELT_SHAPE, endless, {2, 32, 1}, 1, NULL, "input 'x' axis 1: got 9223372036854775807, the longest axis"},
      {0, 2, SMELT_INVALID, xs, {2, 32, 1}, 2, x, "device type 2"},
      {0, 2, SMELT_INVALID, xs, {2, 32, 1}, 1, NULL, "data is NULL, wanted 24 bytes"},
      {0, 2, SMELT_INVALID, NULL, {2, 32, 1}, 1, x, "shape is NULL"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    memcpy(in, good, sizeof in);
    in[rows[i].which] = (DLTensor){.data = rows[i].data, .device = {rows[i].device, 0}, .ndim = rows[i].rank, .dtype = rows[i].type,
                                   .shape = rows[i].shape};
    EXPECT((int32_t)API(smelt_run)(session, in, 2, out, n_out) == rows[i].status && has(E(session), rows[i].text));
  }
  EXPECT(API(smelt_run)(session, good, 1, out, n_out) == SMELT_SHAPE && has(E(session), "got 1 inputs, model 'probe' has 2"));
  EXPECT(API(smelt_run)(session, good, 2, out, 1) == SMELT_SHAPE && has(E(session), "got 1 outputs"));
  EXPECT(API(smelt_run)(session, NULL, 2, out, n_out) == SMELT_INVALID && API(smelt_run)(NULL, good, 2, out, n_out) == SMELT_INVALID);
  static const struct {
    int64_t n;
    int32_t status;
    const char *text;
  } bugs[] = {{13, SMELT_UNSUPPORTED, "gave no reason"}, {14, SMELT_INTERNAL, "status 77"}, {15, SMELT_INTERNAL, "without output 'z'"},
              {16, SMELT_DEVICE, "18014398509481984 bytes"}, {18, SMELT_INTERNAL, "kernel 99 of 4"}, {19, SMELT_INTERNAL, "check 99"},
              {20, SMELT_INVALID, "100000000 rounds"},
              {24, SMELT_SHAPE, "output 'z' of 1099511627776x1099511627776: its dims multiply"},
              {25, SMELT_SHAPE, "the size n*m overflows at n = 25, m = 3{check 1} {check 9} {slot 99} {slot }"}};
  for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
    EXPECT((int32_t)go(session, bugs[i].n, 3, out, n_out) == bugs[i].status && has(E(session), bugs[i].text));
  EXPECT(go(session, 2, 3, out, n_out) == SMELT_OK && right(out, 2, 3)); /* still usable */
  smelt_options tiny = {.struct_size = 4}, less = {.struct_size = sizeof less, .threads = -1};
  smelt_session *none = (smelt_session *)1;
  EXPECT(API(smelt_open)("", &tiny, &none) == SMELT_INVALID && !none && has(E(NULL), "struct_size"));
  EXPECT(API(smelt_open)("", &less, &none) == SMELT_INVALID && has(E(NULL), "threads is negative"));
  EXPECT(API(smelt_open)("", &less, NULL) == SMELT_INVALID && API(smelt_trim)(NULL) == SMELT_INVALID);
  smelt_options vast_struct = {.struct_size = 1 << 30};
  EXPECT(API(smelt_open)("", &vast_struct, &none) == SMELT_INVALID && has(E(NULL), "no size of a struct"));
  smelt_memory memory;
  EXPECT(API(smelt_memory_stats)(NULL, &memory) == SMELT_INVALID && has(E(NULL), "memory_stats: the session is NULL"));
  EXPECT(API(smelt_memory_stats)(session, NULL) == SMELT_INVALID && has(E(NULL), "memory_stats: out is NULL"));
  EXPECT(API(smelt_profile)(NULL, 1) == SMELT_INVALID && has(E(NULL), "smelt_profile"));
  EXPECT(API(smelt_trim)(NULL) == SMELT_INVALID && has(E(NULL), "smelt_trim"));
  EXPECT(API(smelt_kernel_stats)(session, 99, NULL, NULL, NULL) == SMELT_INVALID && has(E(NULL), "no kernel"));
  EXPECT(API(smelt_kernel_stats)(NULL, 0, NULL, NULL, NULL) == SMELT_INVALID && has(E(NULL), "session is NULL"));
  EXPECT(API(smelt_kernel_device_stats)(session, 99, NULL, NULL) == SMELT_INVALID && has(E(NULL), "no kernel"));
  EXPECT(API(smelt_kernel_device_stats)(NULL, 0, NULL, NULL) == SMELT_INVALID && has(E(NULL), "session is NULL"));
  EXPECT(API(smelt_kernel_form)(session, 99, NULL, NULL) == SMELT_INVALID && has(E(NULL), "no kernel"));
  EXPECT(API(smelt_kernel_form)(NULL, 0, NULL, NULL) == SMELT_INVALID && has(E(NULL), "session is NULL"));
  API(smelt_cancel)(NULL), API(smelt_cancel)(session); /* nothing runs: nothing is cancelled */
  EXPECT(go(session, 2, 3, out, n_out) == SMELT_OK && right(out, 2, 3));
  API(smelt_close)(NULL);
}

static void test_profile(smelt_session *session, size_t n_out) {
  DLTensor out[4];
  const char *name;
  uint64_t ns, launches;
  EXPECT(API(smelt_profile)(session, 1) == SMELT_OK);
  for (int i = 0; i < 3; i++) EXPECT(go(session, 500, 70, out, n_out) == SMELT_OK);
  EXPECT(API(smelt_kernel_stats)(session, 0, &name, &ns, &launches) == SMELT_OK && strcmp(name, "affine") == 0);
  EXPECT(launches == 3 && ns > 0);
  EXPECT(API(smelt_kernel_stats)(session, 4, &name, &ns, &launches) == SMELT_INVALID);
  API(smelt_profile)(session, 0);
  EXPECT(go(session, 500, 70, out, n_out) == SMELT_OK);
  API(smelt_kernel_stats)(session, 0, NULL, NULL, &launches);
  EXPECT(launches == 3);
  EXPECT(API(smelt_kernel_device_stats)(session, 0, &ns, &launches) == SMELT_OK);
  const char *form = "unset", *why = NULL;
  EXPECT(API(smelt_kernel_form)(session, 0, &form, &why) == SMELT_OK && !form && why && !*why);
  EXPECT(launches == 3 || (launches == 0 && ns == 0)); /* of all launches, or of none: the CPU has no events */
}

/* ---- a session with workers, cancelled from outside and not to be touched while busy ---- */
static _Atomic int stop;
static smelt_session *shared;
static void *canceller(void *seen) {
  while (!stop) {
    API(smelt_cancel)(shared);
    if (API(smelt_trim)(shared) == SMELT_INVALID && has(E(NULL), "running in another thread")) *(int *)seen = 1;
    for (int i = 0; i < 200; i++) sm_pause();
  }
  return NULL;
}

static void test_threads(const char *bundle, size_t n_out) {
  smelt_session *session = NULL;
  smelt_options options = {.struct_size = sizeof options, .threads = 3};
  EXPECT(API(smelt_open)(bundle, &options, &session) == SMELT_OK);
  if (!session) return;
  DLTensor out[4];
  for (int i = 0; i < 3000; i++) {
    int64_t n = 1 + i % 37;
    if (n == 13 || n == 14 || n == 15 || n == 16 || n == 18 || n == 19 || n == 20 || n == 23 || n == 24 || n == 25) continue;
    EXPECT(go(session, n, 3, out, n_out) == SMELT_OK && right(out, n, 3));
  }
  shared = session;
  int seen_busy = 0, seen_cancel = 0;
  sm_thread thread;
  EXPECT(pthread_create(&thread, NULL, canceller, &seen_busy) == 0);
  uint64_t end = sm_now() + 3000000000u;
  for (int i = 0; (i < 200 || !seen_cancel) && sm_now() < end; i++) {
    smelt_status status = go(session, 400, 20, out, n_out);
    if (status == SMELT_DEVICE && has(E(session), "cancelled")) seen_cancel = 1;
    EXPECT(status == SMELT_OK || status == SMELT_DEVICE || (status == SMELT_INVALID && has(E(NULL), "running in another")));
  }
  stop = 1;
  pthread_join(thread, NULL);
  EXPECT(seen_cancel && seen_busy);
  EXPECT(go(session, 400, 20, out, n_out) == SMELT_OK && right(out, 400, 20));
#ifndef NO_FORK
  int child = fork(); /* the workers stay behind; the session works on, and closing does not wait for them */
  if (child == 0) {
    smelt_status in_child = go(session, 400, 20, out, n_out); /* a device session says that it is lost */
    int bad = in_child == SMELT_OK ? !right(out, 400, 20) : in_child != SMELT_DEVICE || !has(E(session), "before a fork");
    API(smelt_close)(session);
    sm_syscall(SM_exit_group, bad, 0, 0, 0, 0, 0);
  }
  int status = -1;
  EXPECT(sm_syscall(SM_wait4, child, (long)&status, 0, 0, 0, 0) == child && status == 0);
#endif
  API(smelt_close)(session);
  for (int i = 0; i < 20; i++) { /* open, run, close: threads come and go */
    EXPECT(API(smelt_open)(bundle, &options, &session) == SMELT_OK);
    EXPECT(go(session, 100, 20, out, n_out) == SMELT_OK && right(out, 100, 20));
    API(smelt_close)(session);
  }
}

/* ---- a fork and a close while another thread is in the middle of a run ---- */
static _Atomic int running;
#ifndef NO_FORK
static _Atomic int go_on;
static const char *shared_bundle;
static void *runner(void *refused) {
  static float xr[400 * 20], yr[20];
  int64_t xs[] = {400, 20}, ys[] = {20};
  DLTensor in[] = {tensor(xr, 2, xs), tensor(yr, 1, ys)}, out[4];
  while (go_on) {
    for (int i = 0; i < 4; i++) out[i] = (DLTensor){0};
    running = 1;
    smelt_status status = API(smelt_run)(shared, in, 2, out, API(smelt_output_count)(shared));
    *(int *)refused += status != SMELT_OK;
    API(smelt_trim)(NULL); /* at the table of errors, too, when the fork comes */
  }
  return NULL;
}

/* In the child: what was inherited works or is refused with a reason, a session of its own works; nothing hangs. */
static int in_child(size_t n_out) {
  DLTensor out[4];
  smelt_session *own = NULL;
  smelt_status status = go(shared, 7, 5, out, n_out);
  if (status == SMELT_OK ? !right(out, 7, 5) : !has(E(shared), "before a fork") && !has(E(NULL), "when this process was forked")) return 1;
  API(smelt_close)(shared);
#ifdef WITH_OPENCL /* drivers do not survive a fork: another session in the child may wait for ever, and that is not ours */
  (void)own;
  return 0;
#endif
  smelt_options options = {.struct_size = sizeof options, .threads = 3};
  if (API(smelt_open)(shared_bundle, &options, &own) != SMELT_OK) return 2;
  if (go(own, 400, 20, out, n_out) != SMELT_OK || !right(out, 400, 20)) return 3;
  API(smelt_close)(own);
  return 0;
}

/* The child's exit code; -1 when it hangs. */
static int ended(int child) {
  int status = -1;
  for (int ms = 0; ms < 20000; ms++) {
    if (sm_syscall(SM_wait4, child, (long)&status, 1 /* WNOHANG */, 0, 0, 0) == child) return status;
    sm_sleep(1000000);
  }
  sm_syscall(SM_kill, child, 9, 0, 0, 0, 0);
  sm_syscall(SM_wait4, child, (long)&status, 0, 0, 0, 0);
  return -1;
}

static void test_fork_in_a_run(const char *bundle, size_t n_out) {
  smelt_session *session = NULL;
  smelt_options options = {.struct_size = sizeof options, .threads = 3};
  EXPECT(API(smelt_open)(bundle, &options, &session) == SMELT_OK);
  if (!session) return;
  sm_thread thread;
  int refused = 0;
  shared = session;
  shared_bundle = bundle;
  go_on = 1;
  running = 0;
  EXPECT(pthread_create(&thread, NULL, runner, &refused) == 0);
  while (!running) sm_pause();
  for (int i = 0; i < 60; i++) {
    int child = fork();
    if (child == 0) sm_syscall(SM_exit_group, in_child(n_out), 0, 0, 0, 0, 0);
    EXPECT(ended(child) == 0);
  }
  go_on = 0;
  pthread_join(thread, NULL);
  EXPECT(refused == 0);
  API(smelt_close)(session);
}
#endif

static void *one_long_run(void *status) {
  static float xr[20000 * 20], yr[20];
  int64_t xs[] = {20000, 20}, ys[] = {20};
  DLTensor in[] = {tensor(xr, 2, xs), tensor(yr, 1, ys)}, out[4] = {{0}};
  size_t n_out = API(smelt_output_count)(shared);
  running = 1;
  *(_Atomic int *)status = (int)API(smelt_run)(shared, in, 2, out, n_out);
  return NULL;
}

/* Closing waits for the run. The thread may also come too late; it must not then, so it is let in first. */
static void test_close_in_a_run(const char *bundle) {
  for (int i = 0; i < 20; i++) {
    smelt_session *session = NULL;
    sm_thread thread;
    _Atomic int status = -1;
    EXPECT(API(smelt_open)(bundle, NULL, &session) == SMELT_OK);
    shared = session;
    running = 0;
    EXPECT(pthread_create(&thread, NULL, one_long_run, &status) == 0);
    while (!running || API(smelt_trim)(session) == SMELT_OK) {
      if (status >= 0) break; /* it was over before it was seen */
    }
    if (status >= 0) pthread_join(thread, NULL), API(smelt_close)(session);
    else API(smelt_close)(session), pthread_join(thread, NULL);
    session = NULL;
    EXPECT(status == SMELT_OK || status == SMELT_DEVICE || status == SMELT_INVALID);
  }
}

static void test_library(smelt_session *session) {
  DLTensor out[4];
  smelt_status status = go(session, 9, 6, out, 4);
  if (status) {
    printf("status %d: %s\n", (int)status, E(session));
    return;
  }
  EXPECT(right(out, 9, 6) && out[3].shape[0] == 9 && out[3].shape[1] == 1);
  for (int i = 0; i < 9; i++) {
    float want = 0;
    for (int j = 0; j < 6; j++) want += ((float *)out[0].data)[i * 6 + j] * y[j];
    EXPECT(((float *)out[3].data)[i] == want);
  }
  EXPECT(go(session, 9, 0, out, 4) == SMELT_OK && ((float *)out[3].data)[8] == 0);
}

#ifdef SMELT_TEST_ALLOC
/* The system as an allocator that AddressSanitizer watches and that refuses from some request on. */
static int allowed = 1 << 30;
void *smelt_test_map(size_t bytes);
void smelt_test_unmap(void *at, size_t bytes);
void *smelt_test_map(size_t bytes) { return allowed-- > 0 && bytes < ((size_t)1 << 40) ? calloc(1, bytes) : NULL; }
void smelt_test_unmap(void *at, size_t bytes) {
  (void)bytes;
  free(at);
}
/* Refuse the first, second ... request of a run: each time an error and a session that goes on. */
static void test_denied(smelt_session *session, size_t n_out) {
  DLTensor out[4];
  int refused = 0;
  for (int allow = 0; allow < 8; allow++) {
    API(smelt_trim)(session);
    allowed = allow;
    smelt_status status = go(session, 600 - allow, 70, out, n_out);
    allowed = 1 << 30;
    refused += status == SMELT_DEVICE && has(E(session), "bytes wanted");
    EXPECT(status == SMELT_DEVICE || status == SMELT_OK);
    EXPECT(go(session, 4 + allow, 5, out, n_out) == SMELT_OK && right(out, 4 + allow, 5));
  }
  EXPECT(refused >= 2);
}
#endif

int main(int argc, char **argv) {
  const char *bundle = argc > 1 ? argv[1] : ".", *what = argc > 2 ? argv[2] : "all";
  smelt_session *session = NULL;
  smelt_options options = {.struct_size = sizeof options, .threads = 2, .verify = strcmp(what, "verify") == 0};
#ifndef SMELT_STATIC
  char path[512];
  snprintf(path, sizeof path, "%s/libmodel.so", bundle);
  library = dlopen(path, SM_RTLD_NOW);
  if (!library) return printf("dlopen: %s\n", dlerror()), 1;
#endif
  smelt_status status = API(smelt_open)(strcmp(what, "beside") ? bundle : NULL, &options, &session);
  if (status || !strcmp(what, "open") || !strcmp(what, "verify") || !strcmp(what, "beside")) {
    printf("status %d: %s\n", (int)status, status ? E(NULL) : "");
    API(smelt_close)(session);
    return status != SMELT_OK;
  }
  size_t n_out = API(smelt_output_count)(session);
  if (!strcmp(what, "library")) {
    test_library(session);
  } else {
#ifdef SMELT_TEST_ALLOC
    test_denied(session, n_out);
#endif
    test_queries(session);
    test_shapes(session, n_out);
    test_plan_is_kept(session, n_out);
    if (n_out == 3) test_caller_memory(session);
    if (n_out == 3) test_overlaps(session);
    test_refusals(session, n_out);
    test_profile(session, n_out);
    test_threads(bundle, n_out);
#ifndef NO_FORK
    /* not under qemu-user 7.2: now and then a child waits for ever for a lock of qemu's own, beside its RCU thread's event */
#ifndef __SANITIZE_ADDRESS__ /* gcc 12's does not hold its allocator's locks across a fork: a child may wait for one for ever */
    if (strcmp(what, "emulated")) test_fork_in_a_run(bundle, n_out);
#else
    (void)test_fork_in_a_run;
#endif
#endif
    test_close_in_a_run(bundle);
  }
  API(smelt_close)(session);
  puts(failures ? "FAILED" : "OK");
  return failures != 0;
}
