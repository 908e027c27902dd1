/* opencl_driver.c: the driver (driver.h) for OpenCL devices; it opens the vendor's library by dlopen.
 * A unit's code is OpenCL C. */
#include "driver.h"
#include "rt.h"

/* ---- the part of OpenCL 1.2 that is used ---- */
typedef void *cl_handle;
enum {
  CL_DEVICE_TYPE_GPU = 1 << 2, CL_DEVICE_NAME = 0x102B, CL_PROGRAM_BUILD_LOG = 0x1183, CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_MEM_READ_WRITE = 1, CL_MEM_READ_ONLY = 4, CL_MEM_COPY_HOST_PTR = 32, CL_MAP_READ = 1, CL_MAP_WRITE = 2
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
  X(int32_t, clFinish, (cl_handle))                                                                                              \
  X(int32_t, clReleaseMemObject, (cl_handle))                                                                                    \
  X(int32_t, clReleaseKernel, (cl_handle))                                                                                       \
  X(int32_t, clReleaseProgram, (cl_handle))                                                                                      \
  X(int32_t, clReleaseCommandQueue, (cl_handle))                                                                                 \
  X(int32_t, clReleaseContext, (cl_handle))

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

/* Where drivers live; the later ones are Android vendors' (the loader's own name is not public everywhere). */
static const char *const driver_files[] = {"libOpenCL.so.1", "libOpenCL.so", "libOpenCL-pixel.so", "libGLES_mali.so", "libPVROCL.so",
                                           "/vendor/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so",
                                           "/system/vendor/lib64/libOpenCL.so", "/vendor/lib/libOpenCL.so"};

typedef struct {
  cl_api cl;
  const smelt_model_desc *model;
  const smelt_unit_desc *desc;
  uint32_t unit;
  cl_handle device, context, queue, program;
  cl_handle *kernels; /* per kernel id; NULL for a kernel of another unit */
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
      u->device = devices[wanted_device];
      cl->clGetDeviceInfo(devices[wanted_device], CL_DEVICE_NAME, sizeof u->name - 1, u->name, NULL);
      return SMELT_OK;
    }
  return rt_error(rt, SMELT_DEVICE, "OpenCL: %u platforms but no device%s%.32s; check SMELT_OPENCL_DEVICE and clinfo", (unsigned)n_platforms,
                  wish ? " for SMELT_OPENCL_DEVICE=" : "", wish ? wish : "");
}

static int32_t create_context(smelt_rt *rt, cl_unit *u) {
  int32_t code = 0;
  u->context = u->cl.clCreateContext(NULL, 1, &u->device, NULL, NULL, &code);
  if (!u->context) return cl_failed(rt, u, "clCreateContext", code);
  u->queue = u->cl.clCreateCommandQueue(u->context, u->device, 0, &code);
  return u->queue ? SMELT_OK : cl_failed(rt, u, "clCreateCommandQueue", code);
}

static int32_t build_program(smelt_rt *rt, cl_unit *u) {
  int32_t code = 0;
  const char *text = u->desc->code;
  const size_t length = (size_t)u->desc->code_bytes;
  u->program = u->cl.clCreateProgramWithSource(u->context, 1, &text, &length, &code);
  if (!u->program) return cl_failed(rt, u, "clCreateProgramWithSource", code);
  code = u->cl.clBuildProgram(u->program, 1, &u->device, "-cl-std=CL1.2", NULL, NULL);
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
    u->kernels[i] = u->cl.clCreateKernel(u->program, kernel->name, &code);
    if (!u->kernels[i]) return cl_failed(rt, u, kernel->name, code);
    size_t most = 0;
    code = u->cl.clGetKernelWorkGroupInfo(u->kernels[i], u->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (!code && (size_t)kernel->lane_count > most)
      return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': kernel '%s' wants groups of %d work-items, the device does at most %llu; compile for smaller groups",
                      u->name, kernel->name, (int)kernel->lane_count, (unsigned long long)most);
  }
  return SMELT_OK;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  cl_unit *u = calloc(1, sizeof *u + rt->model->n_kernels * sizeof *u->kernels);
  if (!u) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  *state = u;
  u->model = rt->model;
  u->desc = &rt->model->units[unit - 1];
  u->unit = unit;
  u->kernels = (cl_handle *)(u + 1);
  int32_t (*const steps[])(smelt_rt *, cl_unit *) = {load_driver, choose_device, create_context, build_program, create_kernels};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int32_t status = steps[i](rt, u);
    if (status) return status;
  }
  return SMELT_OK;
}

static void close_unit(void *state) {
  cl_unit *u = state;
  for (uint32_t i = 0; i < u->model->n_kernels; i++)
    if (u->kernels[i]) u->cl.clReleaseKernel(u->kernels[i]);
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
  return u->cl.clCreateBuffer(u->context, flags, bytes, (void *)(uintptr_t)contents, code);
}

/* Queued commands keep it alive until they end. */
static void release(void *state, void *memory) { ((cl_unit *)state)->cl.clReleaseMemObject(memory); }

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
/* An OpenCL kernel's parameters, in order: for each buffer `__global uchar *base, ulong offset`, for each dim `long`, then
 * `long groups`. It is launched over one dimension of groups * lane_count work-items, lane_count in a group. */
static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  cl_unit *u = state;
  const smelt_kernel_desc *desc = &u->model->kernels[id];
  cl_handle kernel = u->kernels[id];
  uint32_t at = 0;
  int32_t code = 0;
  for (int32_t i = 0; i < desc->n_buffers; i++) {
    code |= u->cl.clSetKernelArg(kernel, at++, sizeof(cl_handle), &buffers[i].memory);
    code |= u->cl.clSetKernelArg(kernel, at++, sizeof buffers[i].offset, &buffers[i].offset);
  }
  for (int32_t i = 0; i < desc->n_dims; i++) code |= u->cl.clSetKernelArg(kernel, at++, sizeof dims[i], &dims[i]);
  code |= u->cl.clSetKernelArg(kernel, at, sizeof groups, &groups);
  if (code) return code;
  size_t lanes = desc->lane_count > 0 ? (size_t)desc->lane_count : 1, all = (size_t)groups * lanes;
  return u->cl.clEnqueueNDRangeKernel(u->queue, kernel, 1, NULL, &all, &lanes, 0, NULL, NULL);
}

static int32_t finish(void *state) {
  cl_unit *u = state;
  return u->queue ? u->cl.clFinish(u->queue) : 0;
}

const smelt_driver smelt_driver_opencl = {
    .name = "OpenCL", .codes = CODES, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .launch = launch, .finish = finish,
};
