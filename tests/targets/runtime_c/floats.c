/* floats.c: a model whose kernel tells how its thread computes, and a caller whose own mode is another; KEEP: keep_subnormals.
 *
 * input x f32[n]; output y f32[n, 3] = the least normal number / 2; 1 + 2^-25; x * 0 (a trap where the caller enabled them). */
#define _GNU_SOURCE
#include <fenv.h>
#include <float.h>
#include <stdio.h>

#include "rt.h"

static const DLDataType F32 = {2, 32, 1};
static _Atomic int arrived;

static void tell(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, y */
  (void)place;
  const float *x = (const float *)(intptr_t)a[0];
  float *y = (float *)(intptr_t)a[1];
  volatile float least = FLT_MIN, one = 1, small = 0x1p-25f;
  atomic_fetch_add(&arrived, 1);
  for (uint64_t end = sm_now() + 2000000000u; atomic_load(&arrived) < 2 && sm_now() < end;) sm_pause(); /* so that two threads work */
  for (int64_t i = lo; i < hi; i++) y[3 * i] = least * 0.5f, y[3 * i + 1] = one + small, y[3 * i + 2] = x[i] * 0;
}

static const smelt_kernel_desc kernels[] = {{.name = "tell", .fn = tell, .n_buffers = 2, .lane_count = 1, .grain = 1}};
static const smelt_tensor_desc inputs[] = {{"x", F32, 1}}, outputs[] = {{"y", F32, 2}};
static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots) {
  (void)rt;
  slots[0] = 0, slots[1] = shapes[0][0];
  return SMELT_OK;
}
static int32_t model_run(smelt_rt *rt, int64_t *slots, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  smelt_addr y = smelt_rt_output(rt, 0, (int64_t[]){slots[1], 3});
  (void)weights, (void)arena;
  if (!y) return SMELT_DEVICE;
  int32_t status = smelt_rt_launch(rt, 0, (int64_t[]){in[0], y}, slots[1], 0);
  return status || slots[1] != 7 ? status : SMELT_UNSUPPORTED;
}
static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 1, .n_outputs = 1, .n_slots = 2, .inputs = inputs, .outputs = outputs, .plan = model_plan, .run = model_run,
}};
static const smelt_variant_desc variants[] = {{.name = "any"}};
#ifndef KEEP
#define KEEP 0
#endif
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_variants = 1, .n_kernels = 1, .name = "floats", .prefix = "model",
    .entries = entries, .variants = variants, .kernels = kernels, .keep_subnormals = KEEP,
};

static int failures;
#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) failures++, printf("line %d: %s [%s]\n", __LINE__, #condition, smelt_error(session)); \
  } while (0)

/* The mode that the caller has chosen: upwards, invalid operations trap, subnormals stay, and a flag is up. */
static int is_the_callers(void) {
  volatile float least = FLT_MIN, one = 1, small = 0x1p-25f;
  int flags = fetestexcept(FE_ALL_EXCEPT);
  int same = least * 0.5f != 0 && one + small > 1 && fegetround() == FE_UPWARD && flags == FE_DIVBYZERO;
  feclearexcept(FE_ALL_EXCEPT), feraiseexcept(FE_DIVBYZERO);
  return same && fegetexcept() == FE_INVALID;
}

static int looks, right;
static int32_t look(void *context, int32_t site, const int64_t *args, int32_t n_buffers, int32_t n_dims) {
  (void)context, (void)site, (void)args, (void)n_buffers, (void)n_dims;
  looks++, right += is_the_callers();
  return 0;
}

static void test_run(smelt_session *session, int64_t n) {
  static float x[64], y[64 * 3];
  for (int64_t i = 0; i < n; i++) x[i] = __builtin_inff();
  int64_t wide[] = {n, 3};
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n};
  DLTensor out = {.data = y, .device = {1, 0}, .ndim = 2, .dtype = F32, .shape = wide};
  atomic_store(&arrived, 0);
  int32_t status = smelt_run(session, &in, 1, &out, 1);
  EXPECT(is_the_callers());
  EXPECT(status == (n == 7 ? SMELT_UNSUPPORTED : SMELT_OK));
  for (int64_t i = 0; i < n; i++) {
    EXPECT((y[3 * i] != 0) == KEEP && y[3 * i + 1] == 1);
    EXPECT(y[3 * i + 2] != y[3 * i + 2]);
  }
}

int main(void) {
  smelt_session *session = NULL;
  smelt_options options = {.struct_size = sizeof options, .threads = 4};
  EXPECT(!smelt_open(NULL, &options, &session));
  feclearexcept(FE_ALL_EXCEPT), fesetround(FE_UPWARD), feraiseexcept(FE_DIVBYZERO);
  feenableexcept(FE_INVALID);
  for (int64_t n = 1; n <= 64; n += 3) test_run(session, n); /* with 7, where the run fails */
  EXPECT(!smelt_probe(session, look, NULL));
  test_run(session, 64);
  EXPECT(looks == 1 && right == looks);
  smelt_close(session);
  if (!failures) puts("OK");
  return failures != 0;
}
