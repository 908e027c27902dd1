/* cuda_driver.c: the driver (driver.h) for NVIDIA GPUs, over CUDA's driver API, which it opens by dlopen.
 * A unit's code is a piece of images (images.py): PTX and machine code, of which it loads those that fit the device. */
#include "driver.h"
#include "rt.h"

/* ---- the part of the driver API that is used: CUDA 9 and later ---- */
typedef void *cu_handle;
typedef uint64_t cu_address;
enum {
  CU_OUT_OF_MEMORY = 2, CU_DEINITIALIZED = 4, CU_DEVICE_UNAVAILABLE = 46, CU_NO_DEVICE = 100, CU_ECC = 214, CU_NVLINK = 220, CU_NO_BINARY = 209, CU_NOT_FOUND = 500, CU_NOT_READY = 600,
  CU_ILLEGAL_ADDRESS = 700, CU_LAUNCH_TIMEOUT = 702, CU_CONTEXT_DESTROYED = 709, CU_LAUNCH_FAILED = 719,
  CU_INTEGRATED = 18, CU_MAJOR = 75, CU_MINOR = 76, CU_MANAGED = 83,
  CU_FUNCTION_MOST_THREADS = 0, CU_FUNCTION_ASKED_BYTES = 8,
  CU_JIT_ERROR_LOG = 5, CU_JIT_ERROR_LOG_BYTES = 6,
  CU_STREAM_NON_BLOCKING = 1, CU_CAPTURE_THREAD_LOCAL = 1, CU_ATTACH_GLOBAL = 1, CU_ATTACH_SINGLE = 4,
  CU_HOST_PORTABLE = 1, CU_EVENT_NO_TIMES = 2, CU_POINTER_CONTEXT = 1, DL_CUDA = 2, DL_CUDA_MANAGED = 13
};

#define CU_FUNCTIONS(X)                                                                                    \
  X(cuInit, (uint32_t))                                                                                    \
  X(cuDriverGetVersion, (int32_t *))                                                                       \
  X(cuGetErrorString, (int32_t, const char **))                                                            \
  X(cuDeviceGetCount, (int32_t *))                                                                         \
  X(cuDeviceGet, (int32_t *, int32_t))                                                                     \
  X(cuDeviceGetName, (char *, int32_t, int32_t))                                                           \
  X(cuDeviceGetAttribute, (int32_t *, int32_t, int32_t))                                                   \
  X(cuDevicePrimaryCtxRetain, (cu_handle *, int32_t))                                                      \
  X(cuDevicePrimaryCtxRelease, (int32_t))                                                                  \
  X(cuCtxPushCurrent_v2, (cu_handle))                                                                      \
  X(cuCtxPopCurrent_v2, (cu_handle *))                                                                     \
  X(cuStreamCreate, (cu_handle *, uint32_t))                                                               \
  X(cuStreamDestroy_v2, (cu_handle))                                                                       \
  X(cuStreamSynchronize, (cu_handle))                                                                      \
  X(cuStreamQuery, (cu_handle))                                                                            \
  X(cuStreamAttachMemAsync, (cu_handle, cu_address, size_t, uint32_t))                                     \
  X(cuModuleLoadDataEx, (cu_handle *, const void *, uint32_t, int32_t *, void **))                         \
  X(cuModuleUnload, (cu_handle))                                                                           \
  X(cuModuleGetFunction, (cu_handle *, cu_handle, const char *))                                           \
  X(cuFuncGetAttribute, (int32_t *, int32_t, cu_handle))                                                   \
  X(cuFuncSetAttribute, (cu_handle, int32_t, int32_t))                                                     \
  X(cuMemAlloc_v2, (cu_address *, size_t))                                                                 \
  X(cuMemAllocManaged, (cu_address *, size_t, uint32_t))                                                   \
  X(cuMemFree_v2, (cu_address))                                                                            \
  X(cuMemcpyHtoDAsync_v2, (cu_address, const void *, size_t, cu_handle))                                   \
  X(cuMemcpyDtoHAsync_v2, (void *, cu_address, size_t, cu_handle))                                         \
  X(cuMemcpyDtoDAsync_v2, (cu_address, cu_address, size_t, cu_handle))                                     \
  X(cuPointerGetAttribute, (void *, int32_t, cu_address))                                                  \
  X(cuMemGetAddressRange_v2, (cu_address *, size_t *, cu_address))                                         \
  X(cuMemHostAlloc, (void **, size_t, uint32_t))                                                            \
  X(cuMemFreeHost, (void *))                                                                               \
  X(cuEventCreate, (cu_handle *, uint32_t))                                                                \
  X(cuEventRecord, (cu_handle, cu_handle))                                                                 \
  X(cuEventQuery, (cu_handle))                                                                             \
  X(cuEventSynchronize, (cu_handle))                                                                       \
  X(cuEventElapsedTime, (float *, cu_handle, cu_handle))                                                   \
  X(cuEventDestroy_v2, (cu_handle))                                                                        \
  X(cuLaunchKernel, (cu_handle, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, cu_handle, void **, void **))

#define CU_POINTER(name, parameters) int32_t(*name) parameters;
typedef struct {
  CU_FUNCTIONS(CU_POINTER)
} cu_api;
static const struct {
  const char *name;
  size_t at;
} cu_symbols[] = {
#define CU_SYMBOL(name, parameters) {#name, offsetof(cu_api, name)},
    CU_FUNCTIONS(CU_SYMBOL)};

/* Of CUDA 11.4; where they are missing each launch is one of its own. */
#define CU_RECORDING(X)                                          \
  X(cuStreamBeginCapture_v2, (cu_handle, int32_t))               \
  X(cuStreamEndCapture, (cu_handle, cu_handle *))                \
  X(cuGraphInstantiateWithFlags, (cu_handle *, cu_handle, uint64_t)) \
  X(cuGraphLaunch, (cu_handle, cu_handle))                       \
  X(cuGraphExecDestroy, (cu_handle))                             \
  X(cuGraphDestroy, (cu_handle))
typedef struct {
  CU_RECORDING(CU_POINTER)
} cu_recording;
static const struct {
  const char *name;
  size_t at;
} cu_recording_symbols[] = {
#undef CU_SYMBOL
#define CU_SYMBOL(name, parameters) {#name, offsetof(cu_recording, name)},
    CU_RECORDING(CU_SYMBOL)};

typedef struct cu_memory {
  cu_address at;
  struct cu_memory *next; /* of those to be given back */
  int32_t foreign;        /* another library's */
  size_t mapped;          /* bytes of a copy that the host may write */
} cu_memory;

/* Memory of the host that the device reaches by itself. */
typedef struct cu_locked {
  char *at;
  size_t bytes;
  struct cu_locked *next;
} cu_locked;

enum { MOST_TIMED = 64, CU_MARKS = 64 };
/* A row of the images' table, as images.py writes it. */
enum { KIND_PTX = 1, KIND_CUBIN = 2 };
typedef struct {
  uint32_t batch, kind, architecture, reserved;
  uint64_t offset, bytes;
} cu_image;

typedef struct {
  cu_api cu;
  cu_recording recording; /* all of it, or none */
  cu_handle begin[MOST_TIMED], end[MOST_TIMED]; /* events around launches, while somebody asks for times */
  int32_t timed;          /* somebody does */
  uint32_t n_timed;       /* launches since he asked last, also those that had no room */
  const smelt_model_desc *model;
  const smelt_unit_desc *desc;
  uint32_t unit, n_modules;
  int32_t device, architecture, version, integrated, retained, lost; /* lost: the error after which nothing works */
  cu_handle context, stream;
  cu_handle *modules, *kernels; /* per batch; per kernel id, NULL for a kernel of another unit */
  cu_address *blocks;           /* per kernel id: where its parameters go that are too many for a launch */
  int64_t *words;               /* the parameters of a launch */
  cu_memory *dead;              /* released, perhaps still in use */
  cu_locked *locked;
  cu_handle marks[CU_MARKS];    /* events of points, by number, made when first wanted */
  uint64_t marked;              /* the last point's number */
  char name[96];
} cu_unit;

enum { MOST_PARAMETERS = 512, MOST_GROUPS = 0x7FFFFFFF, LOG_BYTES = 4096 };
static const char *cu_told(int32_t code) {
  (void)code;
  return "2 is no memory; 214 and 700 to 719 say that the device is lost to this process, which must start again; the others "
         "are in cuda.h (CUresult); or compile without +cuda";
}

/* Every call is made in the unit's context, which the caller's own is put back after. */
static int32_t enter(cu_unit *u) { return u->lost ? u->lost : u->cu.cuCtxPushCurrent_v2(u->context); }
static int32_t leave(cu_unit *u, int32_t code) {
  cu_handle own;
  u->cu.cuCtxPopCurrent_v2(&own);
  if (code == CU_DEINITIALIZED || code == CU_DEVICE_UNAVAILABLE || code == CU_ECC || code == CU_NVLINK || code == CU_ILLEGAL_ADDRESS ||
      (code >= CU_LAUNCH_TIMEOUT && code < 704) || (code >= CU_CONTEXT_DESTROYED && code <= CU_LAUNCH_FAILED && code != 712 && code != 713))
    u->lost = code;
  return code;
}

/* 1: the stream has work; else 0 or its error. */
static int32_t ask(void *state) {
  const cu_unit *u = state;
  int32_t code = u->cu.cuStreamQuery(u->stream);
  return code == CU_NOT_READY ? 1 : -code;
}

/* Within the context: until the stream is idle, but no longer than is allowed. After that the device is lost to this session. */
static int32_t wait_for_all(cu_unit *u) {
  if (smelt_rt_patience() == UINT64_MAX) return u->cu.cuStreamSynchronize(u->stream);
  int32_t code = smelt_rt_poll(ask, u);
  if (code == SMELT_HANGS) u->lost = code;
  return code == SMELT_HANGS ? code : -code;
}

/* ---- points: events ---- */
static int32_t mark(void *state, uint64_t number) {
  cu_unit *u = state;
  cu_handle *event = &u->marks[number % CU_MARKS];
  int32_t code = enter(u);
  if (code) return code;
  if (!*event) code = u->cu.cuEventCreate(event, CU_EVENT_NO_TIMES);
  if (!code) code = u->cu.cuEventRecord(*event, u->stream);
  u->marked = number;
  return leave(u, code);
}

/* 1: it has not come to that; else 0 or its error. */
static int32_t ask_event(void *state) {
  void *const *at = state;
  const cu_unit *u = at[0];
  int32_t code = u->cu.cuEventQuery(at[1]);
  return code == CU_NOT_READY ? 1 : -code;
}

static int32_t reach(void *state, uint64_t number) {
  cu_unit *u = state;
  if (u->marked >= CU_MARKS && number <= u->marked - CU_MARKS) number = u->marked - CU_MARKS + 1;
  void *asked[] = {u, u->marks[number % CU_MARKS]};
  int32_t code = enter(u);
  if (code) return code;
  if (smelt_rt_patience() == UINT64_MAX) return leave(u, u->cu.cuEventSynchronize(asked[1]));
  code = smelt_rt_poll(ask_event, asked);
  if (code == SMELT_HANGS) u->lost = code;
  return leave(u, code == SMELT_HANGS ? code : -code);
}

static const char *text_of(const cu_unit *u, int32_t code) {
  const char *text = NULL;
  return u->cu.cuGetErrorString(code, &text) || !text ? "unknown" : text;
}
static int32_t cu_failed(smelt_rt *rt, const cu_unit *u, const char *what, int32_t code) {
  return rt_error(rt, SMELT_DEVICE, "CUDA device '%s': %s failed with code %d (%s); %s", u->name, what, (int)code, text_of(u, code), cu_told(code));
}

/* ---- opening ---- */
static int32_t load_driver(smelt_rt *rt, cu_unit *u) {
  void *driver = dlopen("libcuda.so.1", SM_RTLD_NOW);
  if (!driver) {
    const char *why = dlerror();
    return rt_error(rt, SMELT_DEVICE, "CUDA: libcuda.so.1 cannot be loaded (%s); install NVIDIA's driver, or compile without +cuda",
                    why ? why : "no reason given");
  }
  for (size_t i = 0; i < sizeof cu_symbols / sizeof *cu_symbols; i++) {
    void *at = dlsym(driver, cu_symbols[i].name);
    if (!at) return rt_error(rt, SMELT_DEVICE, "CUDA: the driver has no %s, wanted that of CUDA 9 or later; update the driver", cu_symbols[i].name);
    memcpy((char *)&u->cu + cu_symbols[i].at, &at, sizeof at);
  }
  int has = 1;
  for (size_t i = 0; has && i < sizeof cu_recording_symbols / sizeof *cu_recording_symbols; i++) {
    void *at = dlsym(driver, cu_recording_symbols[i].name);
    memcpy((char *)&u->recording + cu_recording_symbols[i].at, &at, sizeof at);
    has = at != NULL;
  }
  if (!has) memset(&u->recording, 0, sizeof u->recording);
  return SMELT_OK; /* never unloaded: drivers own threads */
}

/* SMELT_CUDA_DEVICE="1" (numbers from 0), else the first one. */
static int32_t choose_device(smelt_rt *rt, cu_unit *u) {
  int32_t n = 0, wanted = 0, major = 0, minor = 0;
  int32_t code = u->cu.cuInit(0);
  u->cu.cuDriverGetVersion(&u->version);
  if (!code) code = u->cu.cuDeviceGetCount(&n);
  if (!code && !n) code = CU_NO_DEVICE;
  if (code)
    return rt_error(rt, SMELT_DEVICE, "CUDA: the driver (for CUDA %d.%d) is here but no device that works (code %d: %s); check nvidia-smi, or compile without +cuda",
                    (int)u->version / 1000, (int)u->version % 1000 / 10, (int)code, text_of(u, code));
  const char *wish = getenv("SMELT_CUDA_DEVICE");
  if (wish && *wish) {
    const char *p = wish;
    while (*p >= '0' && *p <= '9' && wanted < 1000) wanted = wanted * 10 + (*p++ - '0');
    if (*p || wanted >= n) return rt_error(rt, SMELT_INVALID, "SMELT_CUDA_DEVICE is '%.32s', wanted a number below %d", wish, (int)n);
  }
  code = u->cu.cuDeviceGet(&u->device, wanted);
  if (code) return cu_failed(rt, u, "cuDeviceGet", code);
  u->cu.cuDeviceGetName(u->name, sizeof u->name - 1, u->device);
  u->cu.cuDeviceGetAttribute(&major, CU_MAJOR, u->device);
  u->cu.cuDeviceGetAttribute(&minor, CU_MINOR, u->device);
  u->architecture = major * 10 + minor;
  int32_t managed = 0;
  u->cu.cuDeviceGetAttribute(&u->integrated, CU_INTEGRATED, u->device);
  u->cu.cuDeviceGetAttribute(&managed, CU_MANAGED, u->device);
  u->integrated = u->integrated && managed;
  return SMELT_OK;
}

static int32_t create_context(smelt_rt *rt, cu_unit *u) {
  int32_t code = u->cu.cuDevicePrimaryCtxRetain(&u->context, u->device);
  if (code) return cu_failed(rt, u, "cuDevicePrimaryCtxRetain", code);
  u->retained = 1;
  code = enter(u);
  if (code) return cu_failed(rt, u, "cuCtxPushCurrent", code);
  code = leave(u, u->cu.cuStreamCreate(&u->stream, CU_STREAM_NON_BLOCKING));
  return code ? cu_failed(rt, u, "cuStreamCreate", code) : SMELT_OK;
}

/* ---- images ---- */
/* The images' table into *n and *batches; NULL after an error. */
static const cu_image *image_table(smelt_rt *rt, const cu_unit *u, uint32_t *n, uint32_t *batches) {
  const char *code = u->desc->code;
  uint64_t bytes = u->desc->code_bytes;
  int whole = bytes >= 16 && !memcmp(code, "SMELTCU1", 8);
  if (whole) {
    memcpy(batches, code + 8, 4);
    memcpy(n, code + 12, 4);
    whole = (uint64_t)*n * sizeof(cu_image) <= bytes - 16 && *batches <= *n;
  }
  const cu_image *rows = (const cu_image *)(const void *)(code + 16);
  for (uint32_t i = 0; whole && i < *n; i++) whole = rows[i].offset <= bytes && rows[i].bytes <= bytes - rows[i].offset && rows[i].bytes;
  if (whole) return rows;
  rt_error(rt, SMELT_INTERNAL, "model '%s' has no images of kernels for CUDA; compile it again", rt->model->name);
  return NULL;
}

/* How well an image fits: 3 machine code of the very device, 2 PTX that the driver translates, 1 machine code of an earlier device of
 * the same generation, 0 not at all. */
static int fit(const cu_unit *u, const cu_image *image) {
  uint32_t here = (uint32_t)u->architecture, there = image->architecture;
  if (image->kind == KIND_PTX) return there <= here ? 2 : 0;
  if (image->kind != KIND_CUBIN) return 0;
  return there == here ? 3 : there / 10 == here / 10 && there < here ? 1 : 0;
}

static int32_t load_image(cu_unit *u, const cu_image *image, uint32_t batch, char *log) {
  int32_t options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
  void *values[] = {log, (void *)(uintptr_t)LOG_BYTES};
  int32_t code = enter(u);
  log[0] = 0;
  return code ? code : leave(u, u->cu.cuModuleLoadDataEx(&u->modules[batch], (const char *)u->desc->code + image->offset, 2, options, values));
}

static int32_t load_batch(smelt_rt *rt, cu_unit *u, const cu_image *rows, uint32_t n, uint32_t batch, char *log) {
  int32_t code = CU_NO_BINARY;
  uint32_t lowest = UINT32_MAX;
  const cu_image *tried = NULL;
  for (int wanted = 3; wanted; wanted--)
    for (uint32_t i = 0; i < n; i++) {
      if (rows[i].batch != batch) continue;
      if (rows[i].architecture < lowest) lowest = rows[i].architecture;
      if (fit(u, &rows[i]) != wanted) continue;
      code = load_image(u, &rows[i], batch, log);
      tried = &rows[i];
      if (!code) return SMELT_OK;
      u->modules[batch] = NULL;
      if (u->lost || code == CU_OUT_OF_MEMORY) return cu_failed(rt, u, "cuModuleLoadDataEx", code);
    }
  log[LOG_BYTES - 1] = 0;
  if (lowest != UINT32_MAX && lowest > (uint32_t)u->architecture)
    return rt_error(rt, SMELT_DEVICE, "CUDA device '%s' is of architecture sm_%d, the model is compiled for sm_%u and later; compile it with +cuda:sm_%d",
                    u->name, (int)u->architecture, (unsigned)lowest, (int)u->architecture);
  char told[400];
  smelt_rt_refused("ptx", tried ? (const char *)u->desc->code + tried->offset : "", tried ? (size_t)tried->bytes : 0, log, told, sizeof told);
  return rt_error(rt, SMELT_DEVICE, "CUDA device '%s' (sm_%d, driver for CUDA %d.%d) refused the model's kernels with code %d (%s): %.300s%s", u->name,
                  (int)u->architecture, (int)u->version / 1000, (int)u->version % 1000 / 10, (int)code, text_of(u, code), log, told);
}

static int32_t load_modules(smelt_rt *rt, cu_unit *u) {
  uint32_t n = 0, batches = 0;
  const cu_image *rows = image_table(rt, u, &n, &batches);
  if (!rows) return SMELT_INTERNAL;
  char *log = calloc(1, LOG_BYTES);
  u->modules = calloc(batches ? batches : 1, sizeof *u->modules);
  int32_t status = log && u->modules ? SMELT_OK : rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  for (uint32_t i = 0; !status && i < batches; i++, u->n_modules = i) status = load_batch(rt, u, rows, n, i, log);
  free(log);
  return status;
}

/* ---- kernels ---- */
static int32_t parameters_of(const smelt_kernel_desc *kernel) { return kernel->n_buffers + kernel->n_dims; }

static int32_t find_kernel(smelt_rt *rt, cu_unit *u, uint32_t id) {
  const smelt_kernel_desc *kernel = &u->model->kernels[id];
  int32_t code = CU_NOT_FOUND, most = 0;
  for (uint32_t m = 0; m < u->n_modules && code == CU_NOT_FOUND; m++) code = u->cu.cuModuleGetFunction(&u->kernels[id], u->modules[m], kernel->name);
  if (!code) code = u->cu.cuFuncGetAttribute(&most, CU_FUNCTION_MOST_THREADS, u->kernels[id]);
  if (!code && most < kernel->lane_count)
    return rt_error(rt, SMELT_DEVICE, "CUDA device '%s': kernel '%s' wants groups of %d threads, the device does at most %d; compile for smaller groups",
                    u->name, kernel->name, (int)kernel->lane_count, (int)most);
  if (!code && kernel->group_bytes) {
    code = u->cu.cuFuncSetAttribute(u->kernels[id], CU_FUNCTION_ASKED_BYTES, kernel->group_bytes);
    if (code)
      return rt_error(rt, SMELT_DEVICE, "CUDA device '%s': kernel '%s' wants %d bytes of shared memory for a group, and the device gives none of that "
                      "size (code %d: %s); compile for an earlier architecture", u->name, kernel->name, (int)kernel->group_bytes, (int)code, text_of(u, code));
  }
  if (!code && parameters_of(kernel) >= MOST_PARAMETERS) code = u->cu.cuMemAlloc_v2(&u->blocks[id], (size_t)parameters_of(kernel) * sizeof *u->words);
  return code ? cu_failed(rt, u, kernel->name, code) : SMELT_OK;
}

static int32_t find_kernels(smelt_rt *rt, cu_unit *u) {
  int32_t code = enter(u), status = code ? cu_failed(rt, u, "cuCtxPushCurrent", code) : SMELT_OK, most = 0;
  for (uint32_t i = 0; !status && i < u->model->n_kernels; i++) {
    if ((uint32_t)u->model->kernels[i].unit != u->unit) continue;
    status = find_kernel(rt, u, i);
    if (parameters_of(&u->model->kernels[i]) > most) most = parameters_of(&u->model->kernels[i]);
  }
  if (!code) leave(u, 0);
  u->words = calloc((size_t)most + 1, sizeof *u->words);
  if (!status && !u->words) status = rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  return status;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  const size_t n = rt->model->n_kernels;
  cu_unit *u = calloc(1, (sizeof *u + 15) / 16 * 16 + n * (sizeof *u->blocks + sizeof *u->kernels));
  if (!u) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  *state = u;
  u->model = rt->model;
  u->desc = &rt->model->units[unit - 1];
  u->unit = unit;
  u->blocks = (cu_address *)(void *)((char *)u + (sizeof *u + 15) / 16 * 16);
  u->kernels = (cu_handle *)(u->blocks + n);
  int32_t (*const steps[])(smelt_rt *, cu_unit *) = {load_driver, choose_device, create_context, load_modules, find_kernels};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int32_t status = steps[i](rt, u);
    if (status) return status;
  }
  return SMELT_OK;
}

/* What is on the list of the released goes back; nothing may be using it. */
static void bury(cu_unit *u) {
  while (u->dead) {
    cu_memory *m = u->dead;
    u->dead = m->next;
    if (!u->lost && !m->foreign) u->cu.cuMemFree_v2(m->at);
    free(m);
  }
}

/* Within the context: the events, as far as there are any. */
static void drop_events(cu_unit *u) {
  for (uint32_t i = 0; i < MOST_TIMED; i++) {
    if (u->begin[i]) u->cu.cuEventDestroy_v2(u->begin[i]);
    if (u->end[i]) u->cu.cuEventDestroy_v2(u->end[i]);
    u->begin[i] = u->end[i] = NULL;
  }
  u->timed = 0;
  u->n_timed = 0;
}

static void close_unit(void *state) {
  cu_unit *u = state;
  if (u->lost == SMELT_HANGS) return; /* the device may be using all of it */
  int in = u->context && !u->cu.cuCtxPushCurrent_v2(u->context); /* a lost device's handles are given back, too */
  if (in && u->stream) u->cu.cuStreamSynchronize(u->stream);
  bury(u);
  if (in) drop_events(u);
  for (uint32_t i = 0; in && i < CU_MARKS; i++)
    if (u->marks[i]) u->cu.cuEventDestroy_v2(u->marks[i]);
  for (uint32_t i = 0; in && i < u->model->n_kernels; i++)
    if (u->blocks[i]) u->cu.cuMemFree_v2(u->blocks[i]);
  for (uint32_t i = 0; in && i < u->n_modules; i++)
    if (u->modules[i]) u->cu.cuModuleUnload(u->modules[i]);
  if (in && u->stream) u->cu.cuStreamDestroy_v2(u->stream);
  if (in) leave(u, 0);
  if (u->retained) u->cu.cuDevicePrimaryCtxRelease(u->device);
  free(u->modules);
  free(u->words);
  free(u);
}

static const char *device_name(const void *state) { return ((const cu_unit *)state)->name; }

/* ---- memory: a cu_memory. On a chip whose GPU shares the host's memory it is managed, and this stream's alone: the host may see it
 * whenever the stream is idle. ---- */
static int32_t take(cu_unit *u, cu_memory *m, size_t bytes) {
  if (!u->integrated) return u->cu.cuMemAlloc_v2(&m->at, bytes);
  int32_t code = u->cu.cuMemAllocManaged(&m->at, bytes, CU_ATTACH_GLOBAL);
  if (!code && (code = u->cu.cuStreamAttachMemAsync(u->stream, m->at, 0, CU_ATTACH_SINGLE))) u->cu.cuMemFree_v2(m->at);
  return code;
}

static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  cu_unit *u = state;
  cu_memory *m = calloc(1, sizeof *m);
  if (!m) return *code = CU_OUT_OF_MEMORY, NULL;
  if ((*code = enter(u))) return free(m), NULL;
  if (u->dead && !(*code = wait_for_all(u))) bury(u);
  int taken = !*code && !(*code = take(u, m, bytes));
  if (taken && contents) *code = u->cu.cuMemcpyHtoDAsync_v2(m->at, contents, bytes, u->stream);
  if (!*code && (contents || u->integrated)) *code = wait_for_all(u);
  if (*code && taken) u->cu.cuMemFree_v2(m->at);
  leave(u, *code);
  if (!*code) return m;
  return free(m), NULL;
}

static void release(void *state, void *memory) {
  cu_unit *u = state;
  cu_memory *m = memory;
  m->next = u->dead;
  u->dead = m;
}

/* Locked memory is of no use where the host sees the device's own. */
static void *lock(void *state, size_t bytes) {
  cu_unit *u = state;
  void *at = NULL;
  cu_locked *l = u->integrated ? NULL : calloc(1, sizeof *l);
  int32_t code = l ? enter(u) : -1;
  if (!code) code = leave(u, u->cu.cuMemHostAlloc(&at, bytes, CU_HOST_PORTABLE));
  if (code) return free(l), NULL;
  *l = (cu_locked){.at = at, .bytes = bytes, .next = u->locked};
  u->locked = l;
  return at;
}

static void unlock(void *state, void *host) {
  cu_unit *u = state;
  cu_locked **at = &u->locked, *l;
  while (*at && (*at)->at != host) at = &(*at)->next;
  if (!(l = *at)) return;
  *at = l->next;
  if (!u->cu.cuCtxPushCurrent_v2(u->context)) leave(u, u->cu.cuMemFreeHost(host)); /* a lost device's, too */
  free(l);
}

static int is_locked(const cu_unit *u, const char *host, size_t bytes) {
  for (const cu_locked *l = u->locked; l; l = l->next)
    if (host >= l->at && host <= l->at + l->bytes && bytes <= (size_t)(l->at + l->bytes - host)) return 1;
  return 0;
}

static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait) {
  cu_unit *u = state;
  int32_t code = enter(u);
  if (code) return code;
  code = u->cu.cuMemcpyHtoDAsync_v2(((cu_memory *)memory)->at + offset, host, bytes, u->stream);
  return leave(u, !code && wait ? wait_for_all(u) : code);
}

static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  cu_unit *u = state;
  int32_t code = enter(u);
  if (code) return code;
  if (wait != SMELT_SOON || !is_locked(u, host, bytes)) code = wait_for_all(u); /* a copy to memory that is not locked would wait as well, for ever */
  if (!code) code = u->cu.cuMemcpyDtoHAsync_v2(host, ((cu_memory *)memory)->at + offset, bytes, u->stream);
  return leave(u, !code && wait == SMELT_NOW ? wait_for_all(u) : code);
}

static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  cu_unit *u = state;
  int32_t code = enter(u);
  return code ? code : leave(u, u->cu.cuMemcpyDtoDAsync_v2(((cu_memory *)to)->at + to_offset, ((cu_memory *)from)->at + from_offset, bytes, u->stream));
}

static int32_t finish(void *state) {
  cu_unit *u = state;
  int32_t code = u->stream ? enter(u) : 0;
  if (code || !u->stream) return code;
  code = wait_for_all(u);
  if (!code) bury(u);
  return leave(u, code);
}

/* Elsewhere the host sees a copy. */
static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  cu_unit *u = state;
  cu_memory *m = memory;
  if (u->integrated) return (*code = finish(u)) ? NULL : (void *)(uintptr_t)m->at;
  void *seen = malloc(bytes);
  if (!seen) return *code = CU_OUT_OF_MEMORY, NULL;
  m->mapped = writes ? bytes : 0;
  *code = download(state, memory, 0, seen, bytes, 1);
  if (!*code) return seen;
  return free(seen), NULL;
}

static int32_t unmap(void *state, void *memory, void *mapped) {
  cu_unit *u = state;
  cu_memory *m = memory;
  if (u->integrated) return u->lost;
  int32_t code = m->mapped ? upload(state, memory, 0, mapped, m->mapped, 1) : u->lost;
  free(mapped);
  return code;
}

static int32_t shares(const void *state) { return ((const cu_unit *)state)->integrated ? SMELT_SHARES_IDLE : SMELT_READS_WAIT; }

/* ---- other libraries ---- */
static void *known(void *state, void *memory, DLDevice *device) {
  *device = (DLDevice){DL_CUDA, ((cu_unit *)state)->device};
  return (void *)(uintptr_t)((cu_memory *)memory)->at;
}

/* Within the context: why the memory cannot be used; NULL: nothing speaks against it. */
static const char *unfit(cu_unit *u, DLDevice device, cu_address at, size_t bytes) {
  cu_handle context = NULL;
  cu_address start = 0;
  size_t size = 0;
  if (device.device_type != DL_CUDA && device.device_type != DL_CUDA_MANAGED) return "it is not CUDA's";
  if (device.device_id != u->device) return "it is of another GPU";
  if (u->cu.cuPointerGetAttribute(&context, CU_POINTER_CONTEXT, at)) return "the driver does not know it";
  if (context != u->context) return "it is not of the GPU's primary context";
  if (u->cu.cuMemGetAddressRange_v2(&start, &size, at) || at < start || bytes > size - (at - start)) return "it has fewer bytes";
  return u->cu.cuStreamSynchronize(NULL) ? "the work there has failed" : NULL; /* the default stream, whose end DLPack speaks of */
}

static void *adopt(void *state, DLDevice device, void *data, size_t bytes, const char **why) {
  cu_unit *u = state;
  cu_memory *m = calloc(1, sizeof *m);
  *why = m ? NULL : "the system has no memory";
  if (m && enter(u)) *why = "the device is lost";
  else if (m) *why = unfit(u, device, (cu_address)(uintptr_t)data, bytes), leave(u, 0);
  if (*why) return free(m), NULL;
  m->at = (cu_address)(uintptr_t)data, m->foreign = 1;
  return m;
}

/* ---- work ---- */
/* A kernel's parameters are int64 in order: the address of each buffer, each dim, the number of the launch's first group. From 512 on
 * they are two: where the buffers and dims are, and the first group. Groups are counted along x alone, which takes 2^31 - 1 of them. */
static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  cu_unit *u = state;
  const smelt_kernel_desc *desc = &u->model->kernels[id];
  const int32_t n = parameters_of(desc);
  int64_t block[2], *words = u->words, *first = &words[n];
  for (int32_t i = 0; i < desc->n_buffers; i++) words[i] = buffers[i].memory ? (int64_t)(((cu_memory *)buffers[i].memory)->at + buffers[i].offset) : 0;
  for (int32_t i = 0; i < desc->n_dims; i++) words[desc->n_buffers + i] = dims[i];
  size_t bytes = ((size_t)n + 1) * sizeof *words;
  int32_t code = enter(u);
  if (code) return code;
  if (u->blocks[id]) {
    code = u->cu.cuMemcpyHtoDAsync_v2(u->blocks[id], words, (size_t)n * sizeof *words, u->stream);
    block[0] = (int64_t)u->blocks[id], words = block, first = &block[1], bytes = sizeof block;
  }
  const int timed = u->timed && u->n_timed < MOST_TIMED;
  if (!code && timed) code = u->cu.cuEventRecord(u->begin[u->n_timed], u->stream);
  for (int64_t at = 0; !code && at < groups; at += MOST_GROUPS) {
    const int64_t left = groups - at, now = left < MOST_GROUPS ? left : MOST_GROUPS;
    void *extra[] = {(void *)1, words, (void *)2, &bytes, NULL}; /* a packed buffer, its size, the end */
    *first = at;
    code = u->cu.cuLaunchKernel(u->kernels[id], (uint32_t)now, 1, 1, (uint32_t)(desc->lane_count > 0 ? desc->lane_count : 1), 1, 1, (uint32_t)desc->group_bytes, u->stream, NULL, extra);
  }
  if (!code && timed) code = u->cu.cuEventRecord(u->end[u->n_timed], u->stream);
  if (u->timed) u->n_timed++;
  return leave(u, code);
}

/* ---- the device's times ---- */
static int32_t take_times(void *state, int on) {
  cu_unit *u = state;
  int32_t code = enter(u);
  if (code) return code;
  code = wait_for_all(u);
  drop_events(u);
  for (uint32_t i = 0; on && !code && i < MOST_TIMED; i++) {
    code = u->cu.cuEventCreate(&u->begin[i], 0);
    if (!code) code = u->cu.cuEventCreate(&u->end[i], 0);
  }
  if (on && code) drop_events(u);
  u->timed = on && !code;
  return leave(u, code);
}

static int64_t elapsed(void *state) {
  cu_unit *u = state;
  uint32_t n = u->n_timed;
  double total = 0;
  u->n_timed = 0;
  if (!n || n > MOST_TIMED || enter(u)) return -1;
  int32_t code = 0;
  for (uint32_t i = 0; i < n && !code; i++) {
    float milliseconds = 0;
    code = u->cu.cuEventElapsedTime(&milliseconds, u->begin[i], u->end[i]);
    total += 1e6 * (double)milliseconds;
  }
  leave(u, code);
  return code ? -1 : (int64_t)total;
}

/* ---- lists: graphs, captured from the stream ---- */
static void forget(void *state, void *list) {
  cu_unit *u = state;
  if (!enter(u)) leave(u, u->recording.cuGraphExecDestroy(list));
}

static void *record(void *state, const smelt_command *commands, uint32_t n) {
  cu_unit *u = state;
  cu_handle graph = NULL, list = NULL;
  if (!u->recording.cuGraphLaunch) return NULL;
  for (uint32_t i = 0; i < n; i++)
    if (commands[i].kernel >= 0 && u->blocks[commands[i].kernel]) return NULL; /* its parameters are in memory of this call */
  int32_t code = enter(u);
  if (code) return NULL;
  code = u->recording.cuStreamBeginCapture_v2(u->stream, CU_CAPTURE_THREAD_LOCAL);
  int begun = !code;
  for (uint32_t i = 0; i < n && !code; i++) {
    const smelt_command *c = &commands[i];
    const smelt_place *to = &c->buffers[0], *from = &c->buffers[1];
    code = c->kernel >= 0 ? launch(u, c->kernel, c->buffers, c->dims, c->groups)
                          : copy(u, to->memory, (size_t)to->offset, from->memory, (size_t)from->offset, (size_t)c->groups);
  }
  if (begun) {
    int32_t ended = u->recording.cuStreamEndCapture(u->stream, &graph);
    code = code ? code : ended;
  }
  if (!code) code = u->recording.cuGraphInstantiateWithFlags(&list, graph, 0);
  if (graph) u->recording.cuGraphDestroy(graph);
  leave(u, code);
  return code ? NULL : list;
}

static int32_t submit(void *state, void *list) {
  cu_unit *u = state;
  int32_t code = enter(u);
  return code ? code : leave(u, u->recording.cuGraphLaunch(list, u->stream));
}

const smelt_driver smelt_driver_cuda = {
    .name = "CUDA", .told = cu_told, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .shares = shares, .launch = launch, .finish = finish,
    .record = record, .submit = submit, .forget = forget, .clock = take_times, .elapsed = elapsed, .mark = mark, .reach = reach,
    .lock = lock, .unlock = unlock, .known = known, .adopt = adopt,
};
