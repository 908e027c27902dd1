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

static void scale(const int64_t *a, int64_t lo, int64_t hi) { /* x, w, t; m */
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) pointer(a[2])[i * a[3] + j] = 2 * pointer(a[0])[i * a[3] + j] + pointer(a[1])[j % 4];
}
static void square(const int64_t *a, int64_t lo, int64_t hi) { /* t, w, u; m */
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) {
      float t = pointer(a[0])[i * a[3] + j];
      pointer(a[2])[i * a[3] + j] = t * t + pointer(a[1])[j % 4];
    }
}
static void subtract(const int64_t *a, int64_t lo, int64_t hi) { /* u, t, v; m */
  for (int64_t i = lo; i < hi; i++)
    for (int64_t j = 0; j < a[3]; j++) pointer(a[2])[i * a[3] + j] = pointer(a[0])[i * a[3] + j] - pointer(a[1])[i * a[3] + j];
}
static void rowsum(const int64_t *a, int64_t lo, int64_t hi) { /* v, s; m */
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
#ifdef WITH_OPENCL
extern const smelt_driver smelt_driver_opencl;
#define BUFFER(x) "global uchar *" #x "b, ulong " #x "o, "
#define FLOATS(x) "  global float *" #x " = (global float *)(" #x "b + " #x "o);\n"
static const char source[] =
    "kernel void scale(" BUFFER(x) BUFFER(w) BUFFER(t) "long m, long groups) {\n" FLOATS(x) FLOATS(w) FLOATS(t)
    "  for (long i = get_group_id(0), j = 0; j < m; j++) t[i * m + j] = 2 * x[i * m + j] + w[j % 4];\n}\n"
    "kernel void subtract(" BUFFER(u) BUFFER(t) BUFFER(v) "long m, long groups) {\n" FLOATS(u) FLOATS(t) FLOATS(v)
    "  for (long i = get_group_id(0), j = 0; j < m; j++) v[i * m + j] = u[i * m + j] - t[i * m + j];\n}\n";
#define FIRST {&smelt_driver_opencl, source, sizeof source - 1, 0, 16}
#else
#define FIRST {&smelt_driver_fake, NULL, 0, 0, 16}
#endif
static const smelt_unit_desc units[] = {FIRST, {&smelt_driver_fake, NULL, 0, 0, 16}};
enum { HOST, ONE, TWO };
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
  if ((status = smelt_rt_launch(rt, SCALE, (int64_t[]){in[0], weights, t, m}, n))) return status;
  if ((status = smelt_rt_copy(rt, there, t, bytes))) return status;
  if ((status = smelt_rt_launch(rt, SQUARE, (int64_t[]){there, weights_there, there + bytes, m}, n))) return status;
  if ((status = smelt_rt_copy(rt, u_here, there + bytes, bytes))) return status;
  if ((status = smelt_rt_launch(rt, SUBTRACT, (int64_t[]){u_here, t, v, m}, n))) return status;
  if ((status = smelt_rt_copy(rt, v_host, v, bytes))) return status;
  return smelt_rt_launch(rt, ROWSUM, (int64_t[]){v_host, s, m}, n);
}

static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 1, .n_outputs = 2, .n_slots = 3, .inputs = inputs, .outputs = outputs, .plan = model_plan, .run = model_run,
    .homes = homes + 3,
}};
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_kernels = KERNELS, .n_arenas = 3,
    .name = "two", .prefix = "model", .entries = entries, .kernels = kernels, .weights_bytes = 16,
    .weights_sums = {(uint64_t)0x3f800000 + 0xc0000000 + 0x40400000 + 0xc0800000,
                     (uint64_t)0x3f800000 + 0xc0000000 * (uint64_t)2 + 0x40400000 * (uint64_t)3 + 0xc0800000 * (uint64_t)4,
                     (uint64_t)0x3f800000 + 0xc0000000 + 0x40400000 + 0xc0800000,
                     (uint64_t)0x3f800000 + 0xc0000000 * (uint64_t)2 + 0x40400000 * (uint64_t)3 + 0xc0800000 * (uint64_t)4},
    .units = units, .n_units = 2, .homes = homes,
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

int main(int argc, char **argv) {
  smelt_session *session;
  if (argc < 2) return 2;
  if (smelt_open(argv[1], NULL, &session)) return printf("%s\n", smelt_error(NULL)), 0;
  static const int64_t sizes[][2] = {{2, 3}, {64, 64}, {1, 1}, {0, 5}, {5, 0}, {33, 7}, {2, 3}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (wrong(session, sizes[i][0], sizes[i][1])) return smelt_close(session), 0;
    if (i == 4) smelt_trim(session);
  }
  smelt_close(session);
  puts("OK");
  return 0;
}
