/* model.c: stands in for a generated model object in the runtime's tests.
 *
 * inputs x f32[n, m], y f32[m]; weights w f32[4]; t = 2 x + y + w[j % 4]
 * outputs z f32[n, m] = t; s f32[n] = row sums of t; p f32[k] = the positive elements of t, in order, k found at run time;
 * with WITH_LIBRARY also g f32[n, 1] = t y. Some sizes of n make it misbehave, see model_run. */
#include "smelt_abi.h"
#include "smelt_libc.h"

#ifndef WEIGHTS_SHA
#define WEIGHTS_SHA {0}
#endif

static const DLDataType F32 = {2, 32, 1};

static float *pointer(int64_t address) { return (float *)(intptr_t)address; }

static void affine(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, y, w, t; m */
  (void)place;
  const float *x = pointer(a[0]), *y = pointer(a[1]), *w = pointer(a[2]);
  float *t = pointer(a[3]);
  int64_t m = a[4];
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < m; j++) t[i * m + j] = 2 * x[i * m + j] + y[j] + w[j % 4];
}
static void rowsum(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* t, s; m */
  (void)place;
  for (int64_t i = lo; i < hi; i++) {
    float sum = 0;
    for (int64_t j = 0; j < a[2]; j++) sum += pointer(a[0])[i * a[2] + j];
    pointer(a[1])[i] = sum;
  }
}
static void count(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* t, k; elements */
  (void)place;
  int64_t k = 0;
  (void)lo, (void)hi;
  for (int64_t i = 0; i < a[2]; i++) k += pointer(a[0])[i] > 0;
  memcpy((void *)(intptr_t)a[1], &k, sizeof k);
}
static void positives(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* t, p; elements */
  (void)place;
  float *p = pointer(a[1]);
  (void)lo, (void)hi;
  for (int64_t i = 0; i < a[2]; i++)
    if (pointer(a[0])[i] > 0) *p++ = pointer(a[0])[i];
}

#ifdef WITH_OPENCL
enum { UNIT = 1, LANES = 4 };
static const char source[] =
#ifdef BROKEN_SOURCE
    "kernel void affine(this is no C\n";
#else
    "typedef struct { long x, y, w, t, m; } of_affine;\n"
    "kernel void affine(global uchar *xb, global uchar *yb, global uchar *wb, global uchar *tb, const of_affine at) {\n"
    "  global float *x = (global float *)(xb + at.x), *y = (global float *)(yb + at.y), *t = (global float *)(tb + at.t);\n"
    "  global float *w = (global float *)(wb + at.w);\n"
    "  long m = at.m;\n"
    "  long i = get_group_id(0);\n"
    "  for (long j = get_local_id(0); j < m; j += get_local_size(0)) t[i * m + j] = 2 * x[i * m + j] + y[j] + w[j % 4];\n"
    "}\n"
    "typedef struct { long t, s, m; } of_rowsum;\n"
    "kernel void rowsum(global uchar *tb, global uchar *sb, const of_rowsum at) {\n"
    "  global float *t = (global float *)(tb + at.t), *s = (global float *)(sb + at.s);\n"
    "  long m = at.m;\n"
    "  float sum = 0;\n"
    "  if (get_local_id(0)) return;\n"
    "  for (long j = 0; j < m; j++) sum += t[get_group_id(0) * m + j];\n"
    "  s[get_group_id(0)] = sum;\n"
    "}\n";
#endif
extern const smelt_driver smelt_driver_opencl;
static const smelt_unit_desc units[] = {{&smelt_driver_opencl, source, sizeof source - 1, 0, 16}};
#else
enum { UNIT = 0, LANES = 1 };
#endif

enum { AFFINE, ROWSUM, COUNT, POSITIVES };
static const smelt_kernel_desc kernels[] = {
    {.name = "affine", .fn = UNIT ? NULL : affine, .unit = UNIT, .n_buffers = 4, .n_dims = 1, .lane_count = LANES, .grain = 1},
    {.name = "rowsum", .fn = UNIT ? NULL : rowsum, .unit = UNIT, .n_buffers = 2, .n_dims = 1, .lane_count = LANES, .grain = 2},
    {.name = "count", .fn = count, .n_buffers = 2, .n_dims = 1, .lane_count = 1, .grain = 1},
    {.name = "positives", .fn = positives, .n_buffers = 2, .n_dims = 1, .lane_count = 1, .grain = 1},
};
static const smelt_tensor_desc inputs[] = {{"x", F32, 2}, {"y", F32, 1}};
static const smelt_tensor_desc outputs[] = {{"z", F32, 2}, {"s", F32, 1}, {"p", F32, 1}, {"g", F32, 2}};
static const smelt_check_desc checks[] = {
    {SMELT_SHAPE, 0, "input 'y' axis 0: got {got}, wanted {want}, the size of input 'x' axis 1"},
    {SMELT_SHAPE, 0, "the size n*m{check 2} {check 9} {slot 99} {slot }"},
    {SMELT_SHAPE, 0, " overflows at n = {slot 1}, m = {slot 2}{check 1}"},
};

enum { ARENA_BYTES, N, M, PLANS_OF_23, STATE };

static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *state) {
  int64_t n = shapes[0][0], m = shapes[0][1];
  if (shapes[1][0] != m) return smelt_rt_fail(rt, 0, shapes[1][0], m);
  state[N] = n, state[M] = m;
  state[ARENA_BYTES] = n * m * 4 + 8;
  if (n == 23 && ++state[PLANS_OF_23] > 1) return SMELT_INTERNAL; /* it was planned before */
  if (n == 25) return smelt_rt_fail(rt, 1, 0, 0);
  return n == 19 ? smelt_rt_fail(rt, 99, 0, 0) : SMELT_OK;
}

/* What p holds, piled up in arena 1 round by round, taken away from p, and put back. */
static int32_t pile(smelt_rt *rt, smelt_addr p, int64_t k) {
  smelt_addr stack = smelt_rt_reserve(rt, 1, 0);
  int32_t status = SMELT_OK;
  for (int64_t i = 0; i < k; i++) {
    if ((status = smelt_rt_round(rt, i))) return status;
    if (!(stack = smelt_rt_grow(rt, 1, (i + 1) * 4096))) return SMELT_DEVICE; /* each round is a page */
    if ((status = smelt_rt_copy(rt, stack + i * 4096, p + i * 4, 4))) return status;
    if ((status = smelt_rt_write(rt, p + i * 4, 0, 4))) return status;
    if (smelt_rt_read(rt, p + i * 4, 4, 1)) return SMELT_INTERNAL;
  }
  for (int64_t i = 0; i < k; i++)
    if ((status = smelt_rt_copy(rt, p + i * 4, stack + i * 4096, 4))) return status;
  return status;
}

static int32_t model_run(smelt_rt *rt, int64_t *state, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = state[N], m = state[M], elements = n * m;
  if (n == 13) return SMELT_UNSUPPORTED;                       /* no text */
  if (n == 14) return 77;                                      /* no status */
  if (n == 15) return SMELT_OK;                                /* no outputs */
  if (n == 16 && !smelt_rt_reserve(rt, 1, (int64_t)1 << 54)) return SMELT_DEVICE;
  if (n == 24) return smelt_rt_output(rt, 0, (int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}) ? SMELT_OK : SMELT_DEVICE;
  if (n == 18) return smelt_rt_launch(rt, 99, &elements, 1, 0);   /* no such kernel */
  if (n == 20) return smelt_rt_round(rt, SMELT_MAX_ROUNDS);    /* a loop that does not end */
  smelt_addr t = arena + 8, k_at = arena;                      /* k first: 8 bytes */
  const int64_t z_shape[] = {n, m};
  smelt_addr s, z, extra, p;
  int32_t status;
  if ((status = smelt_rt_launch(rt, AFFINE, (int64_t[]){in[0], in[1], weights, t, m}, n, 1))) return status;
  if (!(z = smelt_rt_output(rt, 0, z_shape)) || !(s = smelt_rt_output(rt, 1, z_shape))) return SMELT_SHAPE;
  if ((status = smelt_rt_copy(rt, z, t, elements * 4))) return status;
  if ((status = smelt_rt_launch(rt, ROWSUM, (int64_t[]){t, s, m}, n, 2))) return status;
  if ((status = smelt_rt_launch(rt, COUNT, (int64_t[]){t, k_at, elements}, 1, 3))) return status;
  int64_t k = smelt_rt_read(rt, k_at, 8, 1);
  if (!(extra = smelt_rt_reserve(rt, 1, k * 4)) || !(p = smelt_rt_output(rt, 2, &k))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, POSITIVES, (int64_t[]){t, extra, elements}, 1, 4))) return status;
  if ((status = smelt_rt_copy(rt, p, extra, k * 4))) return status;
  if (n == 21 && (status = pile(rt, p, k))) return status;
#ifdef WITH_LIBRARY
  smelt_addr g;
  const int64_t g_shape[] = {n, 1};
  if (!(g = smelt_rt_output(rt, 3, g_shape))) return SMELT_DEVICE;
  status = smelt_rt_library(rt, 0, (int64_t[]){t, in[1], g, n, 1, m}, 5);
#endif
  return status;
}

#ifdef WITH_LIBRARY
enum { OUTPUTS = 4 };
static const smelt_library_desc library_table[] = {{WITH_LIBRARY, "cblas_sgemm", SMELT_LIBRARY_SGEMM, 0}};
#else
enum { OUTPUTS = 3 };
#endif

static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 2, .n_outputs = OUTPUTS, .n_checks = 3, .n_slots = STATE, .inputs = inputs, .outputs = outputs, .checks = checks,
    .plan = model_plan, .run = model_run,
}};
static const smelt_variant_desc variants[] = {{
    .name = "any",
#ifdef WITH_OPENCL
    .units = 1,
#endif
}};
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_variants = 1, .n_kernels = 4, .n_arenas = 2,
    .name = "probe", .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels,
#ifndef NO_WEIGHTS
    .weights_bytes = 16,
#endif
    .weights_sha256 = WEIGHTS_SHA,
#define SUM(a, b, c, d) {(uint64_t)a + b + c + d, (uint64_t)a + (uint64_t)b * 2 + (uint64_t)c * 3 + (uint64_t)d * 4}
    .weights_sums = SUM(0x3f800000, 0xc0000000, 0x40400000, 0xc0800000), /* 1, -2, 3, -4 */
#ifdef WITH_OPENCL
    .units = units, .n_units = 1,
#endif
#ifdef WITH_LIBRARY
    .libraries = library_table, .n_libraries = 1,
#endif
};
