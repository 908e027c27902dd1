/* opencl_driver.c: the driver (driver.h) for OpenCL devices; it opens the vendor's library by dlopen.
 * A unit's code is OpenCL C. */
#include "driver.h"
#include "rt.h"

/* ---- the part of OpenCL 1.2 that is used ---- */
typedef void *cl_handle;
enum {
  CL_DEVICE_TYPE_CPU = 1 << 1, CL_DEVICE_TYPE_GPU = 1 << 2, CL_DEVICE_TYPE = 0x1000, CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D, CL_DEVICE_VERSION = 0x102F, CL_PROGRAM_BINARY_SIZES = 0x1165, CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183, CL_KERNEL_WORK_GROUP_SIZE = 0x11B0, CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_MEM_READ_WRITE = 1, CL_MEM_READ_ONLY = 4, CL_MEM_USE_HOST_PTR = 8, CL_MEM_COPY_HOST_PTR = 32, CL_MAP_READ = 1,
  CL_MAP_WRITE = 2
};
static const uint64_t CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

#define CL_FUNCTIONS(X)                                                                                                          \
  X(int32_t, clGetPlatformIDs, (uint32_t, cl_handle *, uint32_t *))                                                              \
  X(int32_t, clGetDeviceIDs, (cl_handle, uint64_t, uint32_t, cl_handle *, uint32_t *))                                           \
  X(int32_t, clGetDeviceInfo, (cl_handle, uint32_t, size_t, void *, size_t *))                                                   \
  X(cl_handle, clCreateContext, (const void *, uint32_t, const cl_handle *, void *, void *, int32_t *))                          \
  X(cl_handle, clCreateCommandQueue, (cl_handle, cl_handle, uint64_t, int32_t *))                                                \
  X(cl_handle, clCreateBuffer, (cl_handle, uint64_t, size_t, void *, int32_t *))                                                 \
  X(cl_handle, clCreateProgramWithSource, (cl_handle, uint32_t, const char **, const size_t *, int32_t *))                       \
  X(cl_handle, clCreateProgramWithBinary,                                                                                        \
    (cl_handle, uint32_t, const cl_handle *, const size_t *, const uint8_t **, int32_t *, int32_t *))                            \
  X(int32_t, clGetProgramInfo, (cl_handle, uint32_t, size_t, void *, size_t *))                                                  \
  X(int32_t, clBuildProgram, (cl_handle, uint32_t, const cl_handle *, const char *, void *, void *))                             \
  X(int32_t, clGetProgramBuildInfo, (cl_handle, cl_handle, uint32_t, size_t, void *, size_t *))                                  \
  X(cl_handle, clCreateKernel, (cl_handle, const char *, int32_t *))                                                             \
  X(int32_t, clGetKernelWorkGroupInfo, (cl_handle, cl_handle, uint32_t, size_t, void *, size_t *))                               \
  X(int32_t, clSetKernelArg, (cl_handle, uint32_t, size_t, const void *))                                                        \
  X(int32_t, clEnqueueNDRangeKernel,                                                                                             \
    (cl_handle, cl_handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const void *, void *))            \
  X(int32_t, clEnqueueReadBuffer, (cl_handle, cl_handle, uint32_t, size_t, size_t, void *, uint32_t, const void *, void *))      \
  X(int32_t, clEnqueueWriteBuffer,                                                                                               \
    (cl_handle, cl_handle, uint32_t, size_t, size_t, const void *, uint32_t, const void *, void *))                              \
  X(int32_t, clEnqueueCopyBuffer, (cl_handle, cl_handle, cl_handle, size_t, size_t, size_t, uint32_t, const void *, void *))     \
  X(void *, clEnqueueMapBuffer,                                                                                                  \
    (cl_handle, cl_handle, uint32_t, uint64_t, size_t, size_t, uint32_t, const void *, void *, int32_t *))                       \
  X(int32_t, clEnqueueUnmapMemObject, (cl_handle, cl_handle, void *, uint32_t, const void *, void *))                            \
  X(int32_t, clFlush, (cl_handle))                                                                                               \
  X(void *, clGetExtensionFunctionAddressForPlatform, (cl_handle, const char *))                                                 \
  X(int32_t, clFinish, (cl_handle))                                                                                              \
  X(int32_t, clReleaseMemObject, (cl_handle))                                                                                    \
  X(int32_t, clReleaseKernel, (cl_handle))                                                                                       \
  X(int32_t, clReleaseProgram, (cl_handle))                                                                                      \
  X(int32_t, clReleaseCommandQueue, (cl_handle))                                                                                 \
  X(int32_t, clReleaseContext, (cl_handle))

/* cl_khr_command_buffer, where the device has it: what is stable in its versions since 0.9.0. */
enum { CL_DEVICE_EXTENSIONS = 0x1030, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES = 0x12A9, CL_SIMULTANEOUS_CAPABILITY = 1 << 2 };
enum { CL_COMMAND_BUFFER_FLAGS = 0x1293, CL_SIMULTANEOUS_USE = 1 << 0 };
#define CL_RECORDING(X)                                                                                                          \
  X(cl_handle, clCreateCommandBufferKHR, (uint32_t, const cl_handle *, const uint64_t *, int32_t *))                             \
  X(int32_t, clCommandNDRangeKernelKHR,                                                                                          \
    (cl_handle, cl_handle, const void *, cl_handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,          \
     const uint32_t *, uint32_t *, void *))                                                                                      \
  X(int32_t, clFinalizeCommandBufferKHR, (cl_handle))                                                                            \
  X(int32_t, clEnqueueCommandBufferKHR, (uint32_t, cl_handle *, cl_handle, uint32_t, const void *, void *))                      \
  X(int32_t, clReleaseCommandBufferKHR, (cl_handle))

#define CL_POINTER(result, name, parameters) result(*name) parameters;
typedef struct {
  CL_FUNCTIONS(CL_POINTER)
} cl_api;
static const struct {
  const char *name;
  size_t at;
} cl_symbols[] = {
#define CL_SYMBOL(result, name, parameters) {#name, offsetof(cl_api, name)},
    CL_FUNCTIONS(CL_SYMBOL)};

typedef struct {
  CL_RECORDING(CL_POINTER)
} cl_recording;
static const struct {
  const char *name;
  size_t at;
} cl_recording_symbols[] = {
#define CL_RECORDING_SYMBOL(result, name, parameters) {#name, offsetof(cl_recording, name)},
    CL_RECORDING(CL_RECORDING_SYMBOL)};

/* Where drivers live; the later ones are Android vendors' (the loader's own name is not public everywhere). */
static const char *const driver_files[] = {"libOpenCL.so.1", "libOpenCL.so", "libOpenCL-pixel.so", "libGLES_mali.so", "libPVROCL.so",
                                           "/vendor/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so",
                                           "/system/vendor/lib64/libOpenCL.so", "/vendor/lib/libOpenCL.so"};

/* A kernel with the arguments that it was last given: those that stay are not set again. */
typedef struct {
  cl_handle handle; /* NULL: of another unit */
  uint64_t *args;   /* in order; NULL: unknown, all are to be set */
  uint64_t epoch;
} cl_kernel;

typedef struct {
  cl_handle buffer;
  uint64_t submitted; /* cl_unit.finishes at that time, and 1 */
  uint32_t last; /* the last command's sync point */
  uint32_t n;
  cl_handle kernels[]; /* one for each command: PoCL 3.1 reads a kernel's arguments when the list runs, not when it is recorded */
} cl_list;

typedef struct {
  cl_api cl;
  const smelt_model_desc *model;
  const smelt_unit_desc *desc;
  uint32_t unit;
  cl_handle platform, device, context, queue, program;
  cl_kernel *kernels; /* per kernel id */
  uint64_t memory_epoch; /* how often memory has been given back: its handle may come again for another one */
  cl_recording recording; /* all NULL: the device does not record */
  int32_t simultaneous;   /* a list may be submitted while it runs */
  uint32_t unified;       /* the device's memory is the host's: weights are used where they are */
  uint64_t finishes;
  char name[96];
} cl_unit;

static const char CODES[] = "see CL_* in CL/cl.h, or compile without +opencl";

static int32_t cl_failed(smelt_rt *rt, const cl_unit *u, const char *what, int32_t code) {
  return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': %s failed with code %d; %s", u->name, what, (int)code, CODES);
}

/* ---- opening ---- */
static int32_t load_driver(smelt_rt *rt, cl_unit *u) {
  void *driver = NULL;
  for (size_t i = 0; !driver && i < sizeof driver_files / sizeof *driver_files; i++) driver = dlopen(driver_files[i], SM_RTLD_NOW);
  if (!driver) {
    const char *why = dlerror();
    return rt_error(rt, SMELT_DEVICE,
                    "OpenCL: libOpenCL.so.1 cannot be loaded (%s); install a driver and its loader (Debian: ocl-icd-libopencl1 with "
                    "pocl-opencl-icd or the GPU's own package), or compile without +opencl",
                    why ? why : "no reason given");
  }
  for (size_t i = 0; i < sizeof cl_symbols / sizeof *cl_symbols; i++) {
    void *at = dlsym(driver, cl_symbols[i].name);
    if (!at) return rt_error(rt, SMELT_DEVICE, "OpenCL: the driver has no %s, wanted OpenCL 1.2; update the driver", cl_symbols[i].name);
    memcpy((char *)&u->cl + cl_symbols[i].at, &at, sizeof at);
  }
  return SMELT_OK; /* never unloaded: drivers own threads */
}

static uint32_t number(const char **text) {
  uint32_t n = 0;
  while (**text >= '0' && **text <= '9' && n < 1000) n = n * 10 + (uint32_t)(*(*text)++ - '0');
  return n;
}

/* SMELT_OPENCL_DEVICE="platform" or "platform:device" (numbers from 0), else the first GPU, else the first device. */
static int32_t choose_device(smelt_rt *rt, cl_unit *u) {
  enum { MOST = 16 };
  const cl_api *cl = &u->cl;
  cl_handle platforms[MOST], devices[MOST];
  uint32_t n_platforms = 0, n = 0, wanted_device = 0, lo = 0;
  int32_t code = cl->clGetPlatformIDs(MOST, platforms, &n_platforms);
  if (code || !n_platforms)
    return rt_error(rt, SMELT_DEVICE, "OpenCL: the loader is here but no driver (code %d, %u platforms); install one (Debian: pocl-opencl-icd)",
                    (int)code, (unsigned)n_platforms);
  if (n_platforms > MOST) n_platforms = MOST;
  const char *wish = getenv("SMELT_OPENCL_DEVICE");
  uint32_t hi = n_platforms;
  if (wish && *wish) {
    const char *p = wish;
    lo = number(&p);
    if (*p == ':') p++, wanted_device = number(&p);
    if (*p || lo >= n_platforms)
      return rt_error(rt, SMELT_INVALID, "SMELT_OPENCL_DEVICE is '%.32s', wanted platform or platform:device with a platform below %u", wish,
                      (unsigned)n_platforms);
    hi = lo + 1;
  }
  for (int any = wish && *wish; any < 2; any++)
    for (uint32_t i = lo; i < hi; i++) {
      n = 0;
      code = cl->clGetDeviceIDs(platforms[i], any ? CL_DEVICE_TYPE_ALL : CL_DEVICE_TYPE_GPU, MOST, devices, &n);
      if (code || n <= wanted_device || wanted_device >= MOST) continue;
      u->platform = platforms[i], u->device = devices[wanted_device];
      cl->clGetDeviceInfo(devices[wanted_device], CL_DEVICE_NAME, sizeof u->name - 1, u->name, NULL);
      return SMELT_OK;
    }
  return rt_error(rt, SMELT_DEVICE, "OpenCL: %u platforms but no device%s%.32s; check SMELT_OPENCL_DEVICE and clinfo", (unsigned)n_platforms,
                  wish ? " for SMELT_OPENCL_DEVICE=" : "", wish ? wish : "");
}

static int32_t create_context(smelt_rt *rt, cl_unit *u) {
  int32_t code = 0;
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof u->unified, &u->unified, NULL);
  u->context = u->cl.clCreateContext(NULL, 1, &u->device, NULL, NULL, &code);
  if (!u->context) return cl_failed(rt, u, "clCreateContext", code);
  u->queue = u->cl.clCreateCommandQueue(u->context, u->device, 0, &code);
  return u->queue ? SMELT_OK : cl_failed(rt, u, "clCreateCommandQueue", code);
}

static const char OPTIONS[] = "-cl-std=CL1.2";

/* What a binary depends on besides the code. */
static void describe(const cl_unit *u, char *key, size_t room) {
  char driver[128] = "", device[128] = "";
  u->cl.clGetDeviceInfo(u->device, CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_VERSION, sizeof device - 1, device, NULL);
  snprintf(key, room, "%s|%s|%s|%s", u->name, driver, device, OPTIONS);
}

/* The program of a binary that was kept; 0: there is none, or the driver does not take it. */
static int take_binary(smelt_rt *rt, cl_unit *u, const char *key) {
  size_t bytes = 0;
  int32_t taken = 0, code = 0;
  uint8_t *binary = smelt_rt_cached(rt, u->unit, key, &bytes);
  const uint8_t *const_binary = binary;
  if (!binary) return 0;
  u->program = u->cl.clCreateProgramWithBinary(u->context, 1, &u->device, &bytes, &const_binary, &taken, &code);
  free(binary);
  if (u->program && !code && !taken && !u->cl.clBuildProgram(u->program, 1, &u->device, OPTIONS, NULL, NULL)) return 1;
  if (u->program) u->cl.clReleaseProgram(u->program);
  u->program = NULL;
  smelt_rt_useless(rt);
  return 0;
}

static void keep_binary(smelt_rt *rt, cl_unit *u, const char *key) {
  size_t bytes = 0;
  if (u->cl.clGetProgramInfo(u->program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) || !bytes) return;
  uint8_t *binary = malloc(bytes);
  if (binary && !u->cl.clGetProgramInfo(u->program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL))
    smelt_rt_cache(rt, u->unit, key, binary, bytes);
  free(binary);
}

/* A processor's runtime keeps what it compiles itself, and one that is asked for a binary (PoCL) first compiles every kernel for
 * group sizes that none of them has: 3.3 s for 21 kernels, beside 0.3 s. SMELT_OPENCL_BINARIES says otherwise. */
static int keeps_binaries(const cl_unit *u) {
  uint64_t type = 0;
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
  return !(type & CL_DEVICE_TYPE_CPU) || getenv("SMELT_OPENCL_BINARIES");
}

static int32_t build_program(smelt_rt *rt, cl_unit *u) {
  int32_t code = 0;
  const char *text = u->desc->code;
  const size_t length = (size_t)u->desc->code_bytes;
  char key[512];
  int keeps = keeps_binaries(u);
  describe(u, key, sizeof key);
  if (keeps && take_binary(rt, u, key)) return SMELT_OK;
  u->program = u->cl.clCreateProgramWithSource(u->context, 1, &text, &length, &code);
  if (!u->program) return cl_failed(rt, u, "clCreateProgramWithSource", code);
  code = u->cl.clBuildProgram(u->program, 1, &u->device, OPTIONS, NULL, NULL);
  if (!code && keeps) keep_binary(rt, u, key);
  if (!code) return SMELT_OK;
  size_t bytes = 0;
  u->cl.clGetProgramBuildInfo(u->program, u->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char *log = malloc(bytes + 1);
  if (log) {
    u->cl.clGetProgramBuildInfo(u->program, u->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    log[bytes] = 0;
  }
  rt_error(rt, SMELT_DEVICE, "OpenCL device '%s' refused the model's kernels (code %d): %.768s", u->name, (int)code, log ? log : "");
  free(log);
  return SMELT_DEVICE;
}

static int32_t create_kernels(smelt_rt *rt, cl_unit *u) {
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    const smelt_kernel_desc *kernel = &u->model->kernels[i];
    if ((uint32_t)kernel->unit != u->unit) continue;
    int32_t code = 0;
    u->kernels[i].handle = u->cl.clCreateKernel(u->program, kernel->name, &code);
    if (!u->kernels[i].handle) return cl_failed(rt, u, kernel->name, code);
    u->kernels[i].args = malloc(((size_t)kernel->n_buffers * 2 + (size_t)kernel->n_dims + 1) * sizeof *u->kernels[i].args);
    size_t most = 0;
    code = u->cl.clGetKernelWorkGroupInfo(u->kernels[i].handle, u->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (!code && (size_t)kernel->lane_count > most)
      return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': kernel '%s' wants groups of %d work-items, the device does at most %llu; compile for smaller groups",
                      u->name, kernel->name, (int)kernel->lane_count, (unsigned long long)most);
  }
  return SMELT_OK;
}

/* Never a failure: a device that does not record gets its launches one by one. */
static int32_t look_for_recording(smelt_rt *rt, cl_unit *u) {
  size_t bytes = 0;
  uint64_t able = 0;
  (void)rt;
  u->memory_epoch = 1;
  if (u->cl.clGetDeviceInfo(u->device, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes)) return SMELT_OK;
  char *names = calloc(1, bytes + 1);
  if (!names) return SMELT_OK;
  int has = !u->cl.clGetDeviceInfo(u->device, CL_DEVICE_EXTENSIONS, bytes, names, NULL) && strstr(names, "cl_khr_command_buffer");
  free(names);
  for (size_t i = 0; has && i < sizeof cl_recording_symbols / sizeof *cl_recording_symbols; i++) {
    void *at = u->cl.clGetExtensionFunctionAddressForPlatform(u->platform, cl_recording_symbols[i].name);
    memcpy((char *)&u->recording + cl_recording_symbols[i].at, &at, sizeof at);
    has = at != NULL;
  }
  if (!has) memset(&u->recording, 0, sizeof u->recording);
  if (has && !u->cl.clGetDeviceInfo(u->device, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES, sizeof able, &able, NULL))
    u->simultaneous = (able & CL_SIMULTANEOUS_CAPABILITY) != 0;
  return SMELT_OK;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  cl_unit *u = calloc(1, sizeof *u + rt->model->n_kernels * sizeof *u->kernels);
  if (!u) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  *state = u;
  u->model = rt->model;
  u->desc = &rt->model->units[unit - 1];
  u->unit = unit;
  u->kernels = (cl_kernel *)(u + 1);
  int32_t (*const steps[])(smelt_rt *, cl_unit *) = {load_driver, choose_device, create_context, build_program, create_kernels, look_for_recording};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int32_t status = steps[i](rt, u);
    if (status) return status;
  }
  return SMELT_OK;
}

static void close_unit(void *state) {
  cl_unit *u = state;
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    if (u->kernels[i].handle) u->cl.clReleaseKernel(u->kernels[i].handle);
    free(u->kernels[i].args);
  }
  if (u->program) u->cl.clReleaseProgram(u->program);
  if (u->queue) u->cl.clReleaseCommandQueue(u->queue);
  if (u->context) u->cl.clReleaseContext(u->context);
  free(u);
}

static const char *device_name(const void *state) { return ((const cl_unit *)state)->name; }

/* ---- memory: a cl_mem ---- */
static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  cl_unit *u = state;
  uint64_t flags = contents ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE;
  void *used = contents && u->unified
                 ? u->cl.clCreateBuffer(u->context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, bytes, (void *)(uintptr_t)contents, code)
                 : NULL;
  return used ? used : u->cl.clCreateBuffer(u->context, flags, bytes, (void *)(uintptr_t)contents, code);
}

/* Queued commands keep it alive until they end. */
static void release(void *state, void *memory) {
  cl_unit *u = state;
  u->memory_epoch++;
  u->cl.clReleaseMemObject(memory);
}

static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait) {
  cl_unit *u = state;
  return u->cl.clEnqueueWriteBuffer(u->queue, memory, (uint32_t)wait, offset, bytes, host, 0, NULL, NULL);
}

static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  cl_unit *u = state;
  return u->cl.clEnqueueReadBuffer(u->queue, memory, (uint32_t)wait, offset, bytes, host, 0, NULL, NULL);
}

static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  cl_unit *u = state;
  return u->cl.clEnqueueCopyBuffer(u->queue, from, to, from_offset, to_offset, bytes, 0, NULL, NULL);
}

static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  cl_unit *u = state;
  uint64_t flags = writes ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ;
  return u->cl.clEnqueueMapBuffer(u->queue, memory, 1, flags, 0, bytes, 0, NULL, NULL, code);
}

static int32_t unmap(void *state, void *memory, void *mapped) {
  cl_unit *u = state;
  return u->cl.clEnqueueUnmapMemObject(u->queue, memory, mapped, 0, NULL, NULL);
}

/* ---- work ---- */
/* Argument `at` of a kernel, of 8 bytes or, for memory, a handle; not set again where it is what it was. */
static int32_t set(cl_unit *u, cl_kernel *k, int known, uint32_t at, size_t bytes, const void *value) {
  uint64_t word = 0;
  memcpy(&word, value, bytes);
  if (known && k->args[at] == word) return 0;
  if (k->args) k->args[at] = word;
  return u->cl.clSetKernelArg(k->handle, at, bytes, value);
}

/* An OpenCL kernel's parameters, in order: for each buffer `__global uchar *base, ulong offset`, for each dim `long`, then
 * `long groups`. It is launched over one dimension of groups * lane_count work-items, lane_count in a group. */
static int32_t set_all(cl_unit *u, cl_kernel *k, const smelt_kernel_desc *desc, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  int known = k->args && k->epoch == u->memory_epoch;
  uint32_t at = 0;
  int32_t code = 0;
  for (int32_t i = 0; i < desc->n_buffers && !code; i++) {
    code = set(u, k, known, at++, sizeof(cl_handle), &buffers[i].memory);
    if (!code) code = set(u, k, known, at++, sizeof buffers[i].offset, &buffers[i].offset);
  }
  for (int32_t i = 0; i < desc->n_dims && !code; i++) code = set(u, k, known, at++, sizeof dims[i], &dims[i]);
  if (!code) code = set(u, k, known, at, sizeof groups, &groups);
  k->epoch = code ? 0 : u->memory_epoch;
  return code;
}

static size_t lanes_of(const cl_unit *u, int32_t id) {
  int32_t lanes = u->model->kernels[id].lane_count;
  return lanes > 0 ? (size_t)lanes : 1;
}

static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  cl_unit *u = state;
  size_t lanes = lanes_of(u, id), all = (size_t)groups * lanes;
  int32_t code = set_all(u, &u->kernels[id], &u->model->kernels[id], buffers, dims, groups);
  return code ? code : u->cl.clEnqueueNDRangeKernel(u->queue, u->kernels[id].handle, 1, NULL, &all, &lanes, 0, NULL, NULL);
}

static int32_t flush(void *state) {
  cl_unit *u = state;
  return u->cl.clFlush(u->queue);
}

static int32_t finish(void *state) {
  cl_unit *u = state;
  u->finishes++;
  return u->queue ? u->cl.clFinish(u->queue) : 0;
}

/* ---- lists: command buffers of launches; what the versions of the extension have copies in differs, so they have none ---- */
static void forget(void *state, void *list) {
  cl_unit *u = state;
  cl_list *l = list;
  if (l->buffer) u->recording.clReleaseCommandBufferKHR(l->buffer);
  for (uint32_t i = 0; i < l->n; i++) u->cl.clReleaseKernel(l->kernels[i]);
  free(l);
}

static int32_t append(cl_unit *u, cl_list *list, const smelt_command *c) {
  const smelt_kernel_desc *desc = &u->model->kernels[c->kernel];
  size_t lanes = lanes_of(u, c->kernel), all = (size_t)c->groups * lanes;
  uint32_t before = list->n, point = list->last;
  int32_t code = 0;
  cl_kernel own = {.handle = u->cl.clCreateKernel(u->program, desc->name, &code)};
  if (!own.handle) return code;
  list->kernels[list->n++] = own.handle;
  code = set_all(u, &own, desc, c->buffers, c->dims, c->groups);
  if (code) return code;
  return u->recording.clCommandNDRangeKernelKHR(list->buffer, NULL, NULL, own.handle, 1, NULL, &all, &lanes, before > 0, before ? &point : NULL,
                                                &list->last, NULL);
}

static void *record(void *state, const smelt_command *commands, uint32_t n) {
  cl_unit *u = state;
  const uint64_t flags[] = {CL_COMMAND_BUFFER_FLAGS, CL_SIMULTANEOUS_USE, 0};
  int32_t code = 0;
  if (!u->recording.clCreateCommandBufferKHR) return NULL;
  for (uint32_t i = 0; i < n; i++)
    if (commands[i].kernel < 0) return NULL;
  cl_list *list = calloc(1, sizeof *list + n * sizeof *list->kernels);
  if (!list) return NULL;
  list->buffer = u->recording.clCreateCommandBufferKHR(1, &u->queue, u->simultaneous ? flags : NULL, &code);
  if (!list->buffer) return free(list), NULL;
  for (uint32_t i = 0; i < n && !code; i++) code = append(u, list, &commands[i]);
  if (!code) code = u->recording.clFinalizeCommandBufferKHR(list->buffer);
  if (code) forget(u, list), list = NULL;
  return list;
}

static int32_t submit(void *state, void *list) {
  cl_unit *u = state;
  cl_list *l = list;
  int32_t code = l->submitted > u->finishes && !u->simultaneous ? finish(u) : 0;
  l->submitted = u->finishes + 1;
  if (!code) code = u->recording.clEnqueueCommandBufferKHR(0, NULL, l->buffer, 0, NULL, NULL);
  return code ? code : u->cl.clFlush(u->queue);
}

const smelt_driver smelt_driver_opencl = {
    .name = "OpenCL", .codes = CODES, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .launch = launch, .finish = finish,
    .flush = flush, .record = record, .submit = submit, .forget = forget,
};
