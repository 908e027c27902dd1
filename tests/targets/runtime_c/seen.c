/* seen.c: a model whose values lie at a unit and are read and written by the CPU, too, as its host sees them, and a program that runs it.
 *
 * input x f32[n] on the host; arena 0, arena 1, which grows in a loop, and output 0, all at unit 1 and seen by the host
 *   CPU     a = x + 1          arena 0, handed up
 *   thrice: unit 1  b = 2 a + a  arena 0, handed down; in arena 1, which gets n more each round, b is put behind what is there
 *           CPU     a = b + a    over a, which the unit may still read, handed up
 *   unit 1  v = 2 a + a        output 0, handed down
 *   CPU     s = v + c          output 1 on the host; c: the first n of arena 1, as the host wrote them */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "rt.h"

static const DLDataType F32 = {2, 32, 1};
enum { ROUNDS = 3, HERE = 0, UNIT = 1, GAP = 4096 };
static float *pointer(int64_t address) { return (float *)(intptr_t)address; }

static void add(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, y, z = x + y */
  (void)place;
  for (int64_t i = lo; i < hi; i++) pointer(a[2])[i] = pointer(a[0])[i] + pointer(a[1])[i];
}
static void next(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, y = x + 1 */
  (void)place;
  for (int64_t i = lo; i < hi; i++) pointer(a[1])[i] = pointer(a[0])[i] + 1;
}
static void triple(const int64_t *a, int64_t lo, int64_t hi, int64_t place) { /* x, y = 2 x + x */
  (void)place;
  for (int64_t i = lo; i < hi; i++) pointer(a[1])[i] = 2 * pointer(a[0])[i] + pointer(a[0])[i];
}

enum { ADD, NEXT, TRIPLE, KERNELS };
static const smelt_kernel_desc kernels[KERNELS] = {
    {.name = "add", .fn = add, .n_buffers = 3, .n_read = 2, .lane_count = 1, .grain = 1},
    {.name = "next", .fn = next, .n_buffers = 2, .n_read = 1, .lane_count = 1, .grain = 1},
    {.name = "triple", .fn = triple, .unit = UNIT, .n_buffers = 2, .n_read = 1, .lane_count = 1, .grain = 1},
};
extern const smelt_driver smelt_driver_fake;
static const smelt_unit_desc units[] = {{&smelt_driver_fake, NULL, 0, 0, 0}};
static const uint32_t homes[] = {UNIT, UNIT, HERE, UNIT, HERE}, seen[] = {1, 1, 0, 1, 0}; /* two arenas, x, v, s */
static const smelt_tensor_desc inputs[] = {{"x", F32, 1}}, outputs[] = {{"v", F32, 1}, {"s", F32, 1}};

static smelt_addr host(smelt_addr at) { return (smelt_addr)((uint64_t)at | (uint64_t)1 << 63); }

static int32_t model_plan(smelt_rt *rt, const int64_t *const *shapes, int64_t *state) {
  (void)rt;
  state[1] = shapes[0][0];
  state[0] = 2 * (state[1] * 4 + GAP) / GAP * GAP;
  return SMELT_OK;
}

static int32_t model_run(smelt_rt *rt, int64_t *state, const smelt_addr *in, smelt_addr weights, smelt_addr arena) {
  int64_t n = state[1], bytes = n * 4;
  smelt_addr a = arena, b = arena + (bytes + 63) / 64 * 64, c = 0, v, s;
  int32_t status;
  (void)weights;
  if ((status = smelt_rt_launch(rt, NEXT, (int64_t[]){in[0], host(a)}, n, 0))) return status;
  if ((status = smelt_rt_copy(rt, a, host(a), bytes))) return status;
  for (int64_t round = 0; round < ROUNDS; round++) {
    if ((status = smelt_rt_launch(rt, TRIPLE, (int64_t[]){a, b}, n, 1))) return status;
    if ((status = smelt_rt_copy(rt, host(b), b, bytes))) return status;
    if (!(c = smelt_rt_grow(rt, 1, (round + 1) * (bytes + GAP)))) return SMELT_DEVICE;
    if ((status = smelt_rt_copy(rt, host(c + round * bytes), host(b), bytes))) return status;
    if ((status = smelt_rt_launch(rt, ADD, (int64_t[]){host(b), host(a), host(a)}, n, 2))) return status;
    if ((status = smelt_rt_copy(rt, a, host(a), bytes))) return status;
  }
  if (!(v = smelt_rt_output(rt, 0, state + 1)) || !(s = smelt_rt_output(rt, 1, state + 1))) return SMELT_DEVICE;
  if ((status = smelt_rt_launch(rt, TRIPLE, (int64_t[]){a, v}, n, 3))) return status;
  if ((status = smelt_rt_copy(rt, host(v), v, bytes))) return status;
#ifdef WRONG_SIDE
  return smelt_rt_launch(rt, TRIPLE, (int64_t[]){host(v), a}, n, 4);
#endif
  return smelt_rt_launch(rt, ADD, (int64_t[]){host(v), host(c), s}, n, 4);
}

static const smelt_entry_desc entries[] = {{
    .name = "main", .n_inputs = 1, .n_outputs = 2, .n_slots = 2, .inputs = inputs, .outputs = outputs, .plan = model_plan, .run = model_run,
    .homes = homes + 2, .seen = seen + 2,
}};
static const smelt_variant_desc variants[] = {{.name = "any", .units = 1}};
const smelt_model_desc smelt_model = {
    .abi_version = SMELT_ABI_VERSION, .n_entries = 1, .n_variants = 1, .n_kernels = KERNELS, .n_arenas = 2, .name = "seen",
    .prefix = "model", .entries = entries, .variants = variants, .kernels = kernels, .units = units, .n_units = 1, .homes = homes,
    .seen = seen,
};

/* ---- the program: argv[1] is the bundle's folder ---- */
enum { CROSSINGS = 1 + 2 * ROUNDS + 1, MOST = 5000 };

static int right(smelt_session *session, int64_t n) {
  static float x[MOST];
  smelt_memory before, after;
  for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 17) - 8;
  DLTensor in = {.data = x, .device = {1, 0}, .ndim = 1, .dtype = F32, .shape = &n}, out[2];
  memset(out, 0, sizeof out);
  smelt_memory_stats(session, &before);
  if (smelt_run(session, &in, 1, out, 2)) return printf("%s\n", smelt_error(session)), 0;
  smelt_memory_stats(session, &after);
  for (int64_t i = 0; i < n; i++) {
    float a = x[i] + 1, c = 3 * a;
    for (int round = 0; round < ROUNDS; round++) a = 3 * a + a;
    if (((float *)out[0].data)[i] != 3 * a || ((float *)out[1].data)[i] != 3 * a + c) return printf("%d of %d\n", (int)i, (int)n), 0;
  }
  uint64_t copied = after.crossings - before.crossings, shared = after.shared - before.shared, wanted = n ? CROSSINGS : 0;
  const char *how = getenv("FAKE_SHARES");
  /* once before each b and v is read, and at the end, unless memory grows; what goes up is not waited for, nor is what nobody reads yet */
  int grown = after.allocations != before.allocations;
  if (n && !grown && after.waits - before.waits > ROUNDS + 2) return printf("%d waits\n", (int)(after.waits - before.waits)), 0;
  if ((how && strcmp(how, "not") ? shared : copied) == wanted && copied + shared == wanted) return 1;
  return printf("%d copies, %d handed over\n", (int)copied, (int)shared), 0;
}

int main(int argc, char **argv) {
  smelt_session *session;
  setvbuf(stdout, NULL, _IONBF, 0); /* a sanitizer ends the process without it */
  if (argc < 2) return 2;
  if (smelt_open(argv[1], NULL, &session)) return printf("%s\n", smelt_error(NULL)), 0;
  static const int64_t sizes[] = {3, 1000, MOST, 0, 1, MOST, 17};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (!right(session, sizes[i])) return smelt_close(session), 0;
    if (i == 4) smelt_trim(session);
  }
  smelt_close(session);
  puts("OK");
  return 0;
}
