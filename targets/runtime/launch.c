/* launch.c: the id of a kernel or library function with its arguments in; the call, on the CPU or queued on a device, out. */
#include "rt.h"

/* ---- kernels ---- */
/* Where addresses have 32 bits, kernels compute with as many. */
static int32_t too_large(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups) {
  const smelt_kernel_desc *kernel = &rt->model->kernels[id];
  const int64_t *dims = args + kernel->n_buffers;
  int64_t most = groups;
  for (int32_t i = 0; i < kernel->n_dims; i++)
    if (dims[i] > most || dims[i] < -INT32_MAX) most = dims[i];
  if (most <= INT32_MAX && most >= -INT32_MAX) return SMELT_OK;
  return rt_error(rt, SMELT_SHAPE, "kernel '%s' gets a size of %lld, this device has 32-bit addresses; use smaller shapes", kernel->name,
                  (long long)most);
}

static int32_t launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups) {
  const smelt_kernel_desc *kernel = &rt->model->kernels[id];
  if (kernel->unit != 0) return rt_device_launch(rt, id, args, groups);
  if (!rt->session->device) {
    rt_pool_run(&rt->session->pool, kernel->fn, args, groups, kernel->grain);
    return SMELT_OK;
  }
  int32_t status = rt_device_map(rt, args, kernel->n_read, kernel->n_buffers, kernel->n_dims);
  if (status) return status;
  uint64_t callers = sm_swap_floats(rt->session->pool.floats);
  rt_pool_run(&rt->session->pool, kernel->fn, rt->session->mapped_args, groups, kernel->grain);
  sm_swap_floats(callers);
  return rt_device_unmap(rt);
}

/* What a probe wants after a launch. */
static int32_t probe(smelt_rt *rt, const char *what, const int64_t *args, int32_t n_buffers, int32_t n_dims, int32_t site) {
  if (!rt->session->probe) return SMELT_OK;
  if (!rt->session->device) sm_swap_floats(rt->session->callers_floats); /* it is the caller's own code */
  int32_t stop = rt->session->probe(rt->session->probe_context, site, args, n_buffers, n_dims);
  if (!rt->session->device) sm_swap_floats(rt->session->pool.floats);
  if (!stop) return SMELT_OK;
  return rt_error(rt, SMELT_DEVICE, "stopped by its probe after '%s'", what);
}

/* A launch of a session that somebody watches. */
static int32_t launch_watched(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups, int32_t site) {
  const smelt_kernel_desc *kernel = &rt->model->kernels[id];
  uint64_t begin = sm_now();
  int32_t status = groups > 0 ? launch(rt, id, args, groups) : SMELT_OK;
  if (!status && rt->session->device) status = rt_device_wait(rt);
  rt->session->kernel_ns[id] += sm_now() - begin;
  rt->session->kernel_launches[id] += groups > 0;
  int64_t own = rt->session->profiling && kernel->unit && groups > 0 ? rt_device_elapsed(rt, (uint32_t)kernel->unit) : -1;
  if (!status && own >= 0) rt->session->kernel_device_ns[id] += (uint64_t)own, rt->session->kernel_device_launches[id]++;
  return status ? status : probe(rt, kernel->name, args, kernel->n_buffers, kernel->n_dims, site);
}

int32_t smelt_rt_launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups, int32_t site) {
  if (id < 0 || (uint32_t)id >= rt->model->n_kernels)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' launches kernel %d of %u; compile it again", rt->model->name, (int)id,
                    (unsigned)rt->model->n_kernels);
  if (atomic_load_explicit(&rt->session->cancel, memory_order_relaxed))
    return rt_error(rt, SMELT_DEVICE, "cancelled by smelt_cancel before kernel '%s'", rt->model->kernels[id].name);
  if (rt->lost) return rt->lost;
  if (groups <= 0 && !rt->session->watched) return SMELT_OK;
  if (SIZE_MAX == UINT32_MAX && rt->model->kernels[id].unit == 0) {
    int32_t status = too_large(rt, id, args, groups);
    if (status) return status;
  }
  return rt->session->watched ? launch_watched(rt, id, args, groups, site) : launch(rt, id, args, groups);
}

/* ---- memory as generated code sees it ---- */
int64_t smelt_rt_read(smelt_rt *rt, smelt_addr at, int32_t width, int32_t is_signed) {
  uint64_t bits = 0; /* little-endian: the low bytes come first */
  if (rt->session->device) {
    rt->lost = rt_device_read(rt, at, &bits, (uint64_t)width);
    if (rt->lost) return 0;
  } else {
    memcpy(&bits, (const void *)(intptr_t)at, (size_t)width);
  }
  int unused = 64 - 8 * width;
  return is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

smelt_addr smelt_rt_weights(smelt_rt *rt, int32_t unit) {
  if (!rt->session->device) return (smelt_addr)(intptr_t)rt->session->weights;
  if (unit < 0 || (uint32_t)unit > rt->model->n_units) {
    rt->lost = rt_error(rt, SMELT_INTERNAL, "model '%s' wants its weights at unit %d of %u; compile it again", rt->model->name, (int)unit,
                        (unsigned)rt->model->n_units);
    return 0;
  }
  smelt_addr at = rt_device_weights(rt, (uint32_t)unit);
  if (!at && rt->model->weights_bytes) rt->lost = SMELT_DEVICE;
  return at;
}

int32_t smelt_rt_copy(smelt_rt *rt, smelt_addr to, smelt_addr from, int64_t bytes) {
  if (bytes <= 0 || to == from) return SMELT_OK;
  if (rt->session->device) return rt_device_copy(rt, to, from, (uint64_t)bytes);
  memmove((void *)(intptr_t)to, (const void *)(intptr_t)from, (size_t)bytes);
  return SMELT_OK;
}

int32_t smelt_rt_write(smelt_rt *rt, smelt_addr at, int64_t value, int32_t width) {
  if (rt->session->device) return rt_device_write(rt, at, &value, (uint64_t)width); /* little-endian: the low bytes come first */
  memcpy((void *)(intptr_t)at, &value, (size_t)width);
  return SMELT_OK;
}

/* ---- loops ---- */
int32_t smelt_rt_rounds(smelt_rt *rt, int64_t rounds) {
  if (rounds <= SMELT_MAX_ROUNDS) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "a loop of model '%s' is to run %lld rounds, the limit is %lld", rt->model->name, (long long)rounds,
                  (long long)SMELT_MAX_ROUNDS);
}

int32_t smelt_rt_round(smelt_rt *rt, int64_t round) {
  if (atomic_load_explicit(&rt->session->cancel, memory_order_relaxed))
    return rt_error(rt, SMELT_DEVICE, "cancelled by smelt_cancel in round %lld of a loop", (long long)round);
  if (round >= SMELT_MAX_ROUNDS)
    return rt_error(rt, SMELT_INVALID, "a loop of model '%s' has run %lld rounds, which is the limit; its condition may never become false",
                    rt->model->name, (long long)round);
  return rt->lost;
}

/* ---- libraries ---- */
typedef void (*sgemm_fn)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

static int32_t call_sgemm(smelt_rt *rt, const smelt_library_desc *library, void *fn, const int64_t *args) {
  enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111 }; /* cblas.h */
  const float *a = (const float *)(intptr_t)args[0], *b = (const float *)(intptr_t)args[1];
  float *c = (float *)(intptr_t)args[2];
  int64_t m = args[3], n = args[4], k = args[5];
  if (m <= 0 || n <= 0) return SMELT_OK;
  if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX)
    return rt_error(rt, SMELT_UNSUPPORTED, "library '%s': %lld x %lld x %lld, its sizes are 32 bit", library->symbol, (long long)m,
                    (long long)n, (long long)k);
  if (k <= 0) {
    memset(c, 0, (size_t)m * (size_t)n * sizeof *c); /* an empty sum; BLAS wants leading dims of 1 at least */
    return SMELT_OK;
  }
  sgemm_fn sgemm;
  memcpy(&sgemm, &fn, sizeof sgemm); /* ISO C has no cast between object and function pointers */
  sgemm(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, (int)m, (int)n, (int)k, 1.0f, a, (int)k, b, (int)n, 0.0f, c, (int)n);
  return SMELT_OK;
}

/* ---- draws: Steele, Lea and Flood's splitmix64 from a start that the kernel gives. A child of fork draws others. ---- */
int64_t smelt_rt_random(smelt_rt *rt) {
  if (!rt->session->random && !sm_random(&rt->session->random, sizeof rt->session->random)) rt->session->random = sm_now() ^ (uint64_t)(uintptr_t)rt << 24;
  uint64_t z = (rt->session->random += 0x9E3779B97F4A7C15u) ^ (uint64_t)sm_getpid() << 32;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return (int64_t)((z ^ z >> 31) >> 2);
}

typedef struct {
  int32_t n_buffers, n_dims;
  int32_t (*call)(smelt_rt *, const smelt_library_desc *, void *, const int64_t *);
} adapter;
static const adapter adapters[] = {[SMELT_LIBRARY_SGEMM] = {3, 3, call_sgemm}};

/* The library stays loaded until the process ends: BLAS libraries own threads, and unloading those is not safe. */
static int32_t load_library(smelt_rt *rt, const smelt_library_desc *library, void **fn) {
  const char *why = "no file name given";
  for (const char *name = library->files; *name;) {
    const char *end = strchr(name, ';');
    size_t length = end ? (size_t)(end - name) : strlen(name);
    char file[256];
    snprintf(file, sizeof file, "%.*s", (int)length, name);
    void *handle = dlopen(file, SM_RTLD_NOW);
    if (handle && (*fn = dlsym(handle, library->symbol))) return SMELT_OK;
    const char *text = dlerror();
    why = text ? text : "no reason given";
    name += length + (end != NULL);
  }
  return rt_error(rt, SMELT_DEVICE, "library function '%s' was not found in any of '%s' (%s); install one of them or compile without libraries",
                  library->symbol, library->files, why);
}

int32_t smelt_rt_library(smelt_rt *rt, int32_t id, const int64_t *args, int32_t site) {
  if (id < 0 || (uint32_t)id >= rt->model->n_libraries)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' calls library function %d of %u; compile it again", rt->model->name, (int)id,
                    (unsigned)rt->model->n_libraries);
  const smelt_library_desc *library = &rt->model->libraries[id];
  if (library->adapter <= 0 || (size_t)library->adapter >= sizeof adapters / sizeof *adapters)
    return rt_error(rt, SMELT_UNSUPPORTED, "library function '%s' wants adapter %d, this runtime has %d; compile the model again", library->symbol,
                    (int)library->adapter, (int)(sizeof adapters / sizeof *adapters) - 1);
  const adapter *how = &adapters[library->adapter];
  int32_t status = rt->session->library_fn[id] ? SMELT_OK : load_library(rt, library, &rt->session->library_fn[id]);
  if (status) return status;
  if (rt->session->device) {
    status = rt_device_map(rt, args, 0, how->n_buffers, how->n_dims);
    if (status) return status;
    status = how->call(rt, library, rt->session->library_fn[id], rt->session->mapped_args);
    int32_t unmapped = rt_device_unmap(rt);
    status = status ? status : unmapped;
  } else {
    status = how->call(rt, library, rt->session->library_fn[id], args);
  }
  return status || !rt->session->watched ? status : probe(rt, library->symbol, args, how->n_buffers, how->n_dims, site);
}
