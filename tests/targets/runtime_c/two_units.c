/* two_units.c: a model whose kernels alternate between two devices and the CPU, and a program that runs it.
 *
 * input x f32[n, m] at unit 1; weights w f32[4]
 *   unit 1  t = 2 x + w[j % 4]         arena 0
 *   unit 2  u = t t + w[j % 4]         arena 1, t copied there
 *   unit 1  v = u - t                  output 0, u copied there
 *   CPU     s[i] = sum of row i of v   output 1 on the host, v copied to arena 2 there */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "rt.h"

static const DLDataType F32 = {2, 32, 1};
static float *pointer(int64_t address) { return (float *)(intptr_t)address; }

static void scale(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, w, t; m */
  (void)place;
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) pointer(a[2])[i * a[3] + j] = 2 * pointer(a[0])[i * a[3] + j] + pointer(a[1])[j % 4];
}
static void square(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* t, w, u; m */
  (void)place;
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) {
      float t = pointer(a[0])[i * a[3] + j];
      pointer(a[2])[i * a[3] + j] = t * t + pointer(a[1])[j % 4];
    }
}
static void subtract(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* u, t, v; m */
  (void)place;
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) pointer(a[2])[i * a[3] + j] = pointer(a[0])[i * a[3] + j] - pointer(a[1])[i * a[3] + j];
}
static void rowsum(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* v, s; m */
  (void)place;
  for (int64_t i = lo; i < hi; i++) {
    float sum = 0;
    for (int64_t j = 0; j < a[2]; j++) sum += pointer(a[0])[i * a[2] + j];
    pointer(a[1])[i] = sum;
  }
}

enum { SCALE, SQUARE, SUBTRACT, ROWSUM, KERNELS };
static const smelt_kernel_desc kernels[KERNELS] = {
    {.name = "scale", .fn = scale, .unit = 1, .n_buffers = 3, .n_dims = 1, .lane_count = 1, .grain = 1},
#ifdef WRONG_UNIT
    {.name = "square", .fn = square, .unit = 1, .n_buffers = 3, .n_dims = 1, .lane_count = 1, .grain = 1},
#else
    {.name = "square", .fn = square, .unit = 2, .n_buffers = 3, .n_dims = 1, .lane_count = 1, .grain = 1},
#endif
    {.name = "subtract", .fn = subtract, .unit = 1, .n_buffers = 3, .n_dims = 1, .lane_count = 1, .grain = 1},
    {.name = "rowsum", .fn = rowsum, .n_buffers = 2, .n_dims = 1, .lane_count = 1, .grain = 1},
};

extern const smelt_driver smelt_driver_fake;
extern size_t fake_submits, fake_denies, fake_breaks, fake_allocations; /* see fake_driver.c */
extern int fake_lost;
#ifdef WITH_OPENCL
extern const smelt_driver smelt_driver_opencl;
#define BUFFER(x) "global uchar *" #x "b, "
#define FLOATS(x) "  global float *" #x " = (global float *)(" #x "b + at." #x ");\n"
static const char source[] =
    "typedef struct { long x, w, t, m; } of_scale;\n"
    "kernel void scale(" BUFFER(x) BUFFER(w) BUFFER(t) "const of_scale at) {\n" FLOATS(x) FLOATS(w) FLOATS(t)
    "  for (long i = get_group_id(0), j = 0, m = at.m; j < m; j++) t[i * m + j] = 2 * x[i * m + j] + w[j % 4];\n}\n"
    "typedef struct { long u, t, v, m; } of_subtract;\n"
    "kernel void subtract(" BUFFER(u) BUFFER(t) BUFFER(v) "const of_subtract at) {\n" FLOATS(u) FLOATS(t) FLOATS(v)
    "  for (long i = get_group_id(0), j = 0, m = at.m; j < m; j++) v[i * m + j] = u[i * m + j] - t[i * m + j];\n}\n";
#define FIRST {&smelt_driver_opencl, source, sizeof source - 1, 0, 16}
enum { LISTS = 1, LOOKS = 0 }; /* lists of the fake device, in a run; reads where the host looks at unit 1, whose memory is the host's here */
#else
#define FIRST {&smelt_driver_fake, NULL, 0, 0, 16}
enum { LISTS = 3, LOOKS = 1 };
#endif
static const smelt_unit_desc units[] = {FIRST, {&smelt_driver_fake, NULL, 0, 0, 16}};
enum { HOST, ONE, TWO, UP = 3, DOWN = 4 }; /* UP, DOWN: transfers of a run */
#ifdef WRONG_HOME
static const uint32_t homes[] = {ONE, TWO, HOST, 7, ONE, HOST};
#else
static const uint32_t homes[] = {ONE, TWO, HOST, ONE, ONE, HOST}; /* three arenas, x, v, s */
#endif

static const smelt_tensor_desc inputs[] = {{"x", F32, 2}};
static const smelt_tensor_desc outputs[] = {{"v", F32, 2}, {"s", F32, 1}};

static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *state) {
  (void)rt;
  state[1] = shapes[0][0], state[2] = shapes[0][1];
  state[0] = 2 * state[1] * state[2] * 4;
  return SMELT_OK;
}

static int32_t model_run(smelt_rt *rt, int64_t *state, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = state[1], m = state[2], bytes = n * m * 4;
  smelt_addr t = arena, u_here = arena + bytes, there, v_host, v, s, weights_there;
  int32_t status;
  if (!(there = smelt_rt_reserve(rt, 1, 2 * bytes)) || !(v_host = smelt_rt_reserve(rt, 2, bytes))) return SMELT_DEVICE;
  if (!(v = smelt_rt_output(rt, 0, state + 1)) || !(s = smelt_rt_output(rt, 1, state + 1))) return SMELT_DEVICE;
  if (!(weights_there = smelt_rt_weights(rt, TWO))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, SCALE, (int64_t[]){in[0], weights, t, m}, n, 0))) return status;
  if ((status = smelt_rt_copy(rt, there, t, bytes))) return status;
  if ((status = smelt_rt_launch(rt, SQUARE, (int64_t[]){there, weights_there, there + bytes, m}, n, 1))) return status;
  if ((status = smelt_rt_copy(rt, u_here, there + bytes, bytes))) return status;
  if ((status = smelt_rt_launch(rt, SUBTRACT, (int64_t[]){u_here, t, v, m}, n, 2))) return status;
  if ((status = smelt_rt_copy(rt, v_host, v, bytes))) return status;
  return smelt_rt_launch(rt, ROWSUM, (int64_t[]){v_host, s, m}, n, 3);
}

#ifdef BOUNDED
enum { SIDE = 64, MOST = SIDE * SIDE * 4 };
static const uint64_t most[] = {2 * MOST, 2 * MOST, MOST, MOST, MOST, SIDE * 4}; /* of the same */
#define WITH_MOST(n) .most = most + (n),
#else
#define WITH_MOST(n)
#endif
static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 1, .n_outputs = 2, .n_slots = 3, .inputs = inputs, .outputs = outputs, .plan = model_plan, .run = model_run,
    .homes = homes + 3, WITH_MOST(3)
}};
static const smelt_variant_desc variants[] = {{.name = "any", .units = 3}};
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_variants = 1, .n_kernels = KERNELS, .n_arenas = 3,
    .name = "two", .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels, .weights_bytes = 16,
    .weights_sums = {(uint64_t)0x3f800000 + 0xc0000000 + 0x40400000 + 0xc0800000,
                     (uint64_t)0x3f800000 + 0xc0000000 * (uint64_t)2 + 0x40400000 * (uint64_t)3 + 0xc0800000 * (uint64_t)4,
                     (uint64_t)0x3f800000 + 0xc0000000 + 0x40400000 + 0xc0800000,
                     (uint64_t)0x3f800000 + 0xc0000000 * (uint64_t)2 + 0x40400000 * (uint64_t)3 + 0xc0800000 * (uint64_t)4},
    .units = units, .n_units = 2, .homes = homes, WITH_MOST(0)
};

/* ---- the program: argv[1] is the bundle's folder ---- */
static int wrong(smelt_session *session, int64_t n, int64_t m) {
  static const float w[] = {1, -2, 3, -4};
  static float x[64 * 64];
  int64_t shape[] = {n, m};
  for (int64_t i = 0; i < n * m; i++) x[i] = (float)((i * 7 + n) % 23) - 11;
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 2, .dtype = F32, .shape = shape}, out[2];
  memset(out, 0, sizeof out);
  const smelt_rt *rt = (const smelt_rt *)session;
  uint64_t crossed = rt->session->crossings, bytes = rt->session->crossed_bytes;
  if (smelt_run(session, &in, 1, out, 2)) return printf("%s\n", smelt_error(session)), 1;
  if (n > 0 && m > 0 && (rt->session->crossings - crossed != 3 || rt->session->crossed_bytes - bytes != (uint64_t)(3 * n * m * 4)))
    return printf("%d copies between units\n", (int)(rt->session->crossings - crossed)), 1;
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
    for (int64_t j = 0; j < m; j++) {
      float t = 2 * x[i * m + j] + w[j % 4], v = t * t + w[j % 4] - t;
      if (((float *)out[0].data)[i * m + j] != v) return printf("v[%d, %d] of %dx%d\n", (int)i, (int)j, (int)n, (int)m), 1;
      sum += v;
    }
    if (((float *)out[1].data)[i] != sum) return printf("s[%d] of %dx%d\n", (int)i, (int)n, (int)m), 1;
  }
  return 0;
}

#ifdef BOUNDED
/* After smelt_open and until smelt_trim no run takes memory of a unit or of the host, at no shape. */
static int reserved(smelt_session *session) {
  smelt_memory before, after;
  size_t given = fake_allocations;
  smelt_memory_stats(session, &before);
  if (before.arena_capacity < 5 * MOST) return printf("%d bytes are reserved\n", (int)before.arena_capacity), 0;
  for (int64_t n = 1; n <= SIDE; n = 2 * n - n / 3)
    for (int64_t m = 4; m <= SIDE; m += 12)
      if (wrong(session, n, m)) return 0;
  if (wrong(session, SIDE, SIDE)) return 0;
  smelt_memory_stats(session, &after);
  if (fake_allocations != given || after.allocations != before.allocations)
    return printf("%d memories, %d in all\n", (int)(fake_allocations - given), (int)(after.allocations - before.allocations)), 0;
  return 1;
}
#endif

/* The same run again and again: each unit's parts become lists, which are found again by their contents. */
static int records(smelt_session *session) {
  smelt_memory before, after;
  size_t lists = 0;
  for (int i = 0; i < 4; i++) {
    lists = fake_submits;
    smelt_memory_stats(session, &before);
    if (wrong(session, 9, 8)) return 0;
    smelt_memory_stats(session, &after);
  }
  /* unit 1: scale, subtract, each before a copy away; unit 2: square. Up: x, t, u; down: t, u, v to the host twice */
  if (after.launches - before.launches != 3 || after.submits - before.submits != 3)
    return printf("%d launches in %d submits\n", (int)(after.launches - before.launches), (int)(after.submits - before.submits)), 0;
  if (after.uploads - before.uploads != UP || after.reads - before.reads != DOWN)
    return printf("%d uploads, %d reads\n", (int)(after.uploads - before.uploads), (int)(after.reads - before.reads)), 0;
  lists = fake_submits - lists;
  if (lists != (getenv("FAKE_FORGETFUL") ? 0 : LISTS)) return printf("%d lists\n", (int)lists), 0;
  return 1;
}

#ifndef WITH_OPENCL
/* ---- memory that a unit does not give, and calls that fail ---- */
static int32_t attempt_rows(smelt_session *session, int64_t n) {
  static float x[64 * 4];
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 2, .dtype = F32, .shape = (int64_t[]){n, 4}}, out[2];
  memset(out, 0, sizeof out);
  return smelt_run(session, &in, 1, out, 2);
}
static int32_t attempt(smelt_session *session) { return attempt_rows(session, 4); }

/* Shapes that come twice, so that they have lists, and more of them than are kept, in memory that grows between. */
static int32_t attempt_many(smelt_session *session) {
  for (int64_t n = 5; n < 64; n += 6)
    for (int again = 0; again < 2; again++) {
      int32_t status = attempt_rows(session, n);
      if (status) return status;
    }
  return SMELT_OK;
}

/* A failure is told with the device's name, what it was, and what to do; the next run is right. */
static int told(smelt_session *session, int32_t status, const char *what) {
  const char *text = smelt_error(session);
  fake_denies = fake_breaks = 0, fake_lost = 0;
  if (status == SMELT_DEVICE && strstr(text, "fake device 'fake': ") && strstr(text, what)) return !session || !wrong(session, 4, 4);
  return printf("status %d: %s\n", (int)status, text), 0;
}

/* The n-th memory is not given, then the n-th call fails, for all n that a session's first runs come to. */
static int denied(const char *folder) {
  smelt_session *session;
  size_t n = 0;
  for (int given = 0; !given; n++) {
    fake_denies = n + 1;
    int32_t status = smelt_open(folder, NULL, &session);
    if (status) {
      if (!told(NULL, status, " (code -1); ")) return 0;
      continue;
    }
    status = attempt(session);
    given = fake_denies > 0;
    if (!given && !told(session, status, " (code -1); ")) return 0;
    fake_denies = 0;
    smelt_close(session);
  }
  if (n < 6) return printf("%d allocations\n", (int)n), 0;
  for (n = 0;; n++) { /* of the third run, which has lists */
    if (smelt_open(folder, NULL, &session) || attempt(session) || attempt(session)) return printf("%s\n", smelt_error(session)), 0;
    fake_breaks = n + 1;
    int32_t status = attempt(session);
    if (fake_breaks) break;
    if (!told(session, status, "failed with code -9; see fake_driver.c")) return 0;
    smelt_close(session);
  }
  fake_breaks = 0;
  smelt_close(session);
  if (n < 12) return printf("%d calls\n", (int)n), 0;
  for (n = 0;; n++) { /* also where lists are given back, which waits for what is under way */
    if (smelt_open(folder, NULL, &session)) return printf("%s\n", smelt_error(session)), 0;
    fake_breaks = n + 1;
    int32_t status = attempt_many(session);
    if (fake_breaks) break;
    if (!told(session, status, "failed with code -9; see fake_driver.c")) return 0;
    smelt_close(session);
  }
  fake_breaks = 0;
  smelt_close(session);
  if (smelt_open(folder, NULL, &session) || attempt(session)) return 0;
  fake_breaks = 3, fake_lost = 1; /* lost for good, also while the session is closed */
  for (int i = 0; i < 3; i++)
    if (attempt(session) != SMELT_DEVICE || !strstr(smelt_error(session), "failed with code -9")) return printf("%s\n", smelt_error(session)), 0;
  smelt_trim(session);
  smelt_close(session);
  fake_breaks = 0, fake_lost = 0;
  return 1;
}
#endif

/* ---- tensors that stay at units ---- */
enum { N = 6, M = 8, BYTES = N * M * 4 };
static int64_t whole[] = {N, M}, rows[] = {N};
static DLTensor shaped(void *data, int64_t *shape) {
  return (DLTensor){.data = data, .device = {1, 0}, .ndim = shape == whole ? 2 : 1, .dtype = F32, .shape = shape};
}

/* Run from one tensor to others, of which v NULL is the session's; how many transfers more than a run must have. */
static int stays(smelt_session *session, const DLTensor *x, DLTensor *v, DLTensor *s, int up, int down) {
  static const float w[] = {1, -2, 3, -4};
  static float from[N * M], to[N * M], sums[N];
  DLTensor out[2] = {v ? *v : shaped(NULL, whole), s ? *s : shaped(NULL, rows)}, host = shaped(from, whole);
  smelt_memory before, after;
  if (smelt_tensor_copy(session, &host, x)) return printf("%s\n", smelt_error(NULL)), 0;
  smelt_memory_stats(session, &before);
  if (smelt_run(session, x, 1, out, 2)) return printf("%s\n", smelt_error(session)), 0;
  smelt_memory_stats(session, &after);
  /* t and u go from one unit to the other, v comes back */
  if (after.uploads - before.uploads != (uint64_t)(UP - 1 + up) || after.reads - before.reads != (uint64_t)(DOWN - 1 + down))
    return printf("%d uploads and %d reads more\n", (int)(after.uploads - before.uploads) - UP + 1, (int)(after.reads - before.reads) - DOWN + 1), 0;
  DLTensor found = shaped(to, whole), ends = shaped(sums, rows);
  if (smelt_tensor_copy(session, &found, &out[0]) || smelt_tensor_copy(session, &ends, &out[1])) return printf("%s\n", smelt_error(NULL)), 0;
  for (int i = 0; i < N; i++) {
    float sum = 0;
    for (int j = 0; j < M; j++) {
      float t = 2 * from[i * M + j] + w[j % 4], wanted = t * t + w[j % 4] - t;
      if (to[i * M + j] != wanted) return printf("v[%d, %d] of tensors\n", i, j), 0;
      sum += wanted;
    }
    if (sums[i] != sum) return printf("s[%d] of tensors\n", i), 0;
  }
  return 1;
}

static int refused(smelt_session *session, DLTensor x, DLTensor v, const char *why) {
  DLTensor out[2] = {v, shaped(NULL, rows)};
  if (smelt_run(session, &x, 1, out, 2) == SMELT_INVALID && strstr(smelt_error(session), why)) return 1;
  return printf("not refused for '%s': %s\n", why, smelt_error(session)), 0;
}

static int says(smelt_status status, smelt_status wanted, const char *why) {
  if (status == wanted && (!why || strstr(smelt_error(NULL), why))) return 1;
  return printf("status %d, wanted %d and '%s': %s\n", (int)status, (int)wanted, why ? why : "", smelt_error(NULL)), 0;
}

/* Memory of other libraries: at the host it is what it is, of a unit it is the driver's business. */
static int others(smelt_session *session, const DLTensor *on_unit) {
  static float values[N * M + 1];
  DLTensor theirs = shaped(values, whole), out = theirs, strange;
  int64_t strides[2] = {1, N};
  theirs.byte_offset = sizeof *values;
  for (int i = 0; i < N * M; i++) values[i + 1] = (float)(i % 5) - 2;
  if (!says(smelt_tensor_import(session, HOST, BYTES, &theirs, &out), SMELT_OK, NULL)) return 0;
  if (out.data != values + 1 || out.device.device_type != 1 || out.byte_offset) return puts("import at the host"), 0;
  if (!stays(session, &out, NULL, NULL, 1, 1)) return 0; /* x goes up, v comes back */
  if (!says(smelt_tensor_export(session, &out, &strange), SMELT_OK, NULL) || strange.data != values + 1) return puts("export at the host"), 0;
  if (!says(smelt_tensor_free(session, &out), SMELT_OK, NULL) || values[1] != -2) return 0; /* it is not ours to give back */
  if (!says(smelt_tensor_import(session, ONE, BYTES, &theirs, &out), SMELT_INVALID, "device type 1, device 0, is none that")) return 0;
  if (!says(smelt_tensor_import(session, 3, BYTES, &theirs, &out), SMELT_INVALID, "has units 0 (the host) to 2")) return 0;
  strange = theirs, strange.device = (DLDevice){2, 0};
  if (!says(smelt_tensor_import(session, HOST, BYTES, &strange, &out), SMELT_INVALID, "type 2, device 0, is not the host's")) return 0;
  strange = theirs, strange.strides = strides;
  if (!says(smelt_tensor_import(session, HOST, BYTES, &strange, &out), SMELT_INVALID, "its strides are not")) return 0;
  strange = theirs, strange.data = NULL;
  if (!says(smelt_tensor_import(session, HOST, BYTES, &strange, &out), SMELT_INVALID, "its data is NULL")) return 0;
  if (!says(smelt_tensor_import(session, HOST, 0, &strange, &out), SMELT_OK, NULL)) return 0; /* nothing, from nowhere */
  if (!says(smelt_tensor_free(session, &out), SMELT_OK, NULL)) return 0;
  if (!says(smelt_tensor_import(session, HOST, BYTES, NULL, &out), SMELT_INVALID, "the tensor is NULL")) return 0;
  if (!says(smelt_tensor_export(session, on_unit, NULL), SMELT_INVALID, "the tensor is NULL")) return 0;
  strange = *on_unit, strange.data = &strange;
  if (!says(smelt_tensor_export(session, &strange, &out), SMELT_INVALID, "this is no tensor that smelt_tensor made")) return 0;
#ifdef WITH_OPENCL
  return says(smelt_tensor_export(session, on_unit, &out), SMELT_OK, NULL) && (out.device.device_type == 4 || printf("type %d\n", (int)out.device.device_type) < 0);
#else
  return says(smelt_tensor_export(session, on_unit, &out), SMELT_UNSUPPORTED, "no other library knows memory of fake");
#endif
}

static int tensors(smelt_session *session) {
  static float values[N * M];
  DLTensor host = shaped(values, whole), a = host, b = host, far = host, sums = shaped(NULL, rows), little = host, odd;
  for (int i = 0; i < N * M; i++) values[i] = (float)(i % 5) - 2;
  if (smelt_input_unit(session, 0) != ONE || smelt_output_unit(session, 0) != ONE || smelt_output_unit(session, 1) != HOST ||
      smelt_input_unit(session, 1) != -1)
    return puts("units"), 0;
  if (smelt_tensor(session, ONE, BYTES, &a) || smelt_tensor(session, ONE, BYTES, &b) || smelt_tensor(session, TWO, BYTES, &far) ||
      smelt_tensor(session, HOST, 4 * N, &sums) || smelt_tensor(session, TWO, 4, &little))
    return printf("%s\n", smelt_error(NULL)), 0;
  if (smelt_tensor_copy(session, &a, &host)) return printf("%s\n", smelt_error(NULL)), 0;
  if (!stays(session, &a, NULL, NULL, 0, 1)) return 0;     /* v comes back */
  if (!stays(session, &a, &b, NULL, 0, 0)) return 0;       /* nothing crosses */
  if (!stays(session, &b, &a, &sums, 0, 0)) return 0;      /* what was an output is an input */
  if (smelt_tensor_copy(session, &far, &host) || !stays(session, &far, &a, NULL, 1, 1)) return 0; /* from unit 2 to unit 1 */
  if (smelt_tensor_copy(session, &a, &host) || !stays(session, &a, &far, NULL, 1, LOOKS)) return 0;
  if (smelt_tensor_copy(session, &b, &a) || !stays(session, &host, &b, NULL, 1, 0)) return 0;
  if (!refused(session, a, a, "share memory")) return 0;
  odd = a, odd.byte_offset = 4;
  if (!refused(session, odd, b, "with a byte_offset")) return 0;
  odd = a, odd.device.device_id = TWO;
  if (!refused(session, odd, b, "no handle of this session")) return 0;
  odd = a, odd.data = &odd;
  if (!refused(session, odd, b, "no handle of this session") || smelt_tensor_free(session, &odd) != SMELT_INVALID) return 0;
  odd = shaped(values, (int64_t[]){64, 64}), odd.ndim = 2, odd.device = b.device, odd.data = b.data;
  if (!refused(session, odd, a, "its memory on unit 1 has")) return 0;
  odd = b;
  if (smelt_tensor_free(session, &b) || b.data || smelt_tensor_free(session, &sums)) return 0;
  if (!refused(session, odd, shaped(NULL, whole), "no handle of this session")) return 0;
  if (smelt_tensor(session, 3, 4, &odd) != SMELT_INVALID || !strstr(smelt_error(NULL), "has units 0 (the host) to 2")) return 0;
  if (!others(session, &a)) return 0;
  smelt_trim(session);
  return stays(session, &a, NULL, NULL, 0, 1); /* the others go with the session */
}

int main(int argc, char **argv) {
  smelt_session *session;
  setvbuf(stdout, NULL, _IONBF, 0); /* a sanitizer ends the process without it */
  if (argc < 2) return 2;
  if (smelt_open(argv[1], NULL, &session)) return printf("%s\n", smelt_error(NULL)), 0;
#ifdef BOUNDED
  if (!reserved(session)) return smelt_close(session), 0;
#endif
  static const int64_t sizes[][2] = {{2, 3}, {64, 64}, {1, 1}, {0, 5}, {5, 0}, {33, 7}, {2, 3}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (wrong(session, sizes[i][0], sizes[i][1])) return smelt_close(session), 0;
    if (i == 4) smelt_trim(session);
  }
  if (!records(session)) return smelt_close(session), 0;
  if (!tensors(session)) return smelt_close(session), 0;
#ifndef WITH_OPENCL
  if (!getenv("FAKE_COMPILES") && !denied(argv[1])) return smelt_close(session), 0;
#endif
  smelt_memory m;
  smelt_memory_stats(session, &m);
  smelt_close(session);
  if (getenv("FAKE_COMPILES")) printf("%d found, %d not, ", (int)m.cache_hits, (int)m.cache_misses);
  puts("OK");
  return 0;
}
