/* device_cl.c: launches and addresses of a model's OpenCL kernels in, work on the device out; the driver comes by dlopen.
 *
 * An address is (space << 56 | byte offset). A space is one cl_mem: 1 the weights, then the arenas, the inputs, the outputs. */
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

enum { MAX_SPACES = 128, OFFSET_BITS = 56, WEIGHTS_SPACE = 1 };

typedef struct {
  cl_handle memory;
  uint64_t capacity;
  char *mapped;
} cl_space;

struct rt_device {
  cl_api cl;
  cl_handle device, context, queue, program;
  cl_handle *kernels; /* per kernel id; NULL for a CPU kernel */
  uint32_t first_arena, first_input, first_output, n_spaces;
  cl_space spaces[MAX_SPACES];
  int pid; /* of the process that opened it: drivers do not survive a fork, and calls in a child may wait for ever */
  char name[96];
};

static smelt_addr address(uint32_t space) { return (smelt_addr)((uint64_t)space << OFFSET_BITS); }
static uint32_t space_of(smelt_addr at) { return (uint32_t)((uint64_t)at >> OFFSET_BITS); }
static size_t offset_of(smelt_addr at) { return (size_t)((uint64_t)at & (((uint64_t)1 << OFFSET_BITS) - 1)); }

static int32_t cl_failed(smelt_rt *rt, const char *what, int32_t code) {
  return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': %s failed with code %d; see CL_* in CL/cl.h, or compile without +opencl",
                  rt->device->name, what, (int)code);
}

/* ---- opening ---- */
static int32_t load_driver(smelt_rt *rt) {
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
    memcpy((char *)&rt->device->cl + cl_symbols[i].at, &at, sizeof at);
  }
  return SMELT_OK; /* never unloaded: drivers own threads */
}

static uint32_t number(const char **text) {
  uint32_t n = 0;
  while (**text >= '0' && **text <= '9' && n < 1000) n = n * 10 + (uint32_t)(*(*text)++ - '0');
  return n;
}

/* SMELT_OPENCL_DEVICE="platform" or "platform:device" (numbers from 0), else the first GPU, else the first device. */
static int32_t choose_device(smelt_rt *rt) {
  enum { MOST = 16 };
  const cl_api *cl = &rt->device->cl;
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
      rt->device->device = devices[wanted_device];
      cl->clGetDeviceInfo(devices[wanted_device], CL_DEVICE_NAME, sizeof rt->device->name - 1, rt->device->name, NULL);
      return SMELT_OK;
    }
  return rt_error(rt, SMELT_DEVICE, "OpenCL: %u platforms but no device%s%.32s; check SMELT_OPENCL_DEVICE and clinfo", (unsigned)n_platforms,
                  wish ? " for SMELT_OPENCL_DEVICE=" : "", wish ? wish : "");
}

static int32_t build_program(smelt_rt *rt) {
  rt_device *d = rt->device;
  int32_t code = 0;
  d->program = d->cl.clCreateProgramWithSource(d->context, 1, (const char **)(uintptr_t)&rt->model->device_source, NULL, &code);
  if (!d->program) return cl_failed(rt, "clCreateProgramWithSource", code);
  code = d->cl.clBuildProgram(d->program, 1, &d->device, "-cl-std=CL1.2", NULL, NULL);
  if (!code) return SMELT_OK;
  size_t bytes = 0;
  d->cl.clGetProgramBuildInfo(d->program, d->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char *log = malloc(bytes + 1);
  if (log) {
    d->cl.clGetProgramBuildInfo(d->program, d->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    log[bytes] = 0;
  }
  rt_error(rt, SMELT_DEVICE, "OpenCL device '%s' refused the model's kernels (code %d): %.768s", d->name, (int)code, log ? log : "");
  free(log);
  return SMELT_DEVICE;
}

static int32_t create_kernels(smelt_rt *rt) {
  rt_device *d = rt->device;
  for (uint32_t i = 0; i < rt->model->n_kernels; i++) {
    const smelt_kernel_desc *kernel = &rt->model->kernels[i];
    if (kernel->unit == 0) continue;
    int32_t code = 0;
    d->kernels[i] = d->cl.clCreateKernel(d->program, kernel->name, &code);
    if (!d->kernels[i]) return cl_failed(rt, kernel->name, code);
    size_t most = 0;
    code = d->cl.clGetKernelWorkGroupInfo(d->kernels[i], d->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (!code && (size_t)kernel->lane_count > most)
      return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': kernel '%s' wants groups of %d work-items, the device does at most %llu; compile for smaller groups",
                      d->name, kernel->name, (int)kernel->lane_count, (unsigned long long)most);
  }
  return SMELT_OK;
}

static int32_t upload_weights(smelt_rt *rt) {
  rt_device *d = rt->device;
  uint64_t bytes = rt->model->weights_bytes;
  if (!bytes) return SMELT_OK;
  int32_t code = 0;
  cl_space *space = &d->spaces[WEIGHTS_SPACE];
  space->memory = d->cl.clCreateBuffer(d->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, (size_t)bytes, (void *)(uintptr_t)rt->weights, &code);
  if (!space->memory)
    return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': %llu bytes of weights do not fit (code %d); use a device with more memory", d->name,
                    (unsigned long long)bytes, (int)code);
  space->capacity = bytes;
  rt->allocations++;
  return SMELT_OK;
}

static int32_t create_context(smelt_rt *rt) {
  rt_device *d = rt->device;
  int32_t code = 0;
  d->context = d->cl.clCreateContext(NULL, 1, &d->device, NULL, NULL, &code);
  if (!d->context) return cl_failed(rt, "clCreateContext", code);
  d->queue = d->cl.clCreateCommandQueue(d->context, d->device, 0, &code);
  return d->queue ? SMELT_OK : cl_failed(rt, "clCreateCommandQueue", code);
}

int32_t rt_device_open(smelt_rt *rt) {
  const smelt_model_desc *m = rt->model;
  uint32_t n_spaces = WEIGHTS_SPACE + 1 + m->n_arenas + m->n_inputs + m->n_outputs;
  if (n_spaces > MAX_SPACES)
    return rt_error(rt, SMELT_UNSUPPORTED, "OpenCL: model '%s' has %u inputs, outputs and arenas, at most %d fit an address; compile without +opencl",
                    m->name, (unsigned)n_spaces, MAX_SPACES - 2);
  rt_device *d = calloc(1, sizeof *d + m->n_kernels * sizeof *d->kernels);
  if (!d) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  rt->device = d;
  d->pid = sm_getpid();
  d->kernels = (cl_handle *)(d + 1);
  d->first_arena = WEIGHTS_SPACE + 1;
  d->first_input = d->first_arena + m->n_arenas;
  d->first_output = d->first_input + m->n_inputs;
  d->n_spaces = n_spaces;
  int32_t (*const steps[])(smelt_rt *) = {load_driver, choose_device, create_context, build_program, create_kernels, upload_weights};
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
    int32_t status = steps[i](rt);
    if (status) return status;
  }
  return SMELT_OK;
}

static void release_space(rt_device *d, cl_space *space) {
  if (space->memory) d->cl.clReleaseMemObject(space->memory); /* queued commands keep it alive until they end */
  *space = (cl_space){0};
}

static void release_all(smelt_rt *rt) {
  rt_device *d = rt->device;
  if (d->queue) d->cl.clFinish(d->queue);
  for (uint32_t i = 0; i < d->n_spaces; i++) release_space(d, &d->spaces[i]);
  for (uint32_t i = 0; i < rt->model->n_kernels; i++)
    if (d->kernels[i]) d->cl.clReleaseKernel(d->kernels[i]);
  if (d->program) d->cl.clReleaseProgram(d->program);
  if (d->queue) d->cl.clReleaseCommandQueue(d->queue);
  if (d->context) d->cl.clReleaseContext(d->context);
}

void rt_device_close(smelt_rt *rt) {
  rt_device *d = rt->device;
  if (d->pid == sm_getpid()) release_all(rt);
  free(d);
  rt->device = NULL;
}

/* ---- memory ---- */
static smelt_addr no_space(smelt_rt *rt, const char *what, uint64_t bytes, int32_t code) {
  rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': %s wants %llu bytes and gets none (code %d); use smaller shapes", rt->device->name, what,
           (unsigned long long)bytes, (int)code);
  return 0;
}

enum { UNIT = 4096 };
/* What an address can tell apart, and a size_t, whole units. */
static int too_many(uint64_t bytes) { return bytes > ((uint64_t)1 << OFFSET_BITS) - UNIT || bytes > SIZE_MAX / 2; }

static smelt_addr grow_space(smelt_rt *rt, uint32_t i, uint64_t bytes, const char *what) {
  rt_device *d = rt->device;
  cl_space *space = &d->spaces[i];
  if (space->memory && bytes <= space->capacity) return address(i);
  if (too_many(bytes)) return no_space(rt, what, bytes, 0);
  uint64_t rounded = bytes ? (bytes + UNIT - 1) / UNIT * UNIT : UNIT;
  int32_t code = 0;
  release_space(d, space);
  space->memory = d->cl.clCreateBuffer(d->context, CL_MEM_READ_WRITE, (size_t)rounded, NULL, &code);
  if (!space->memory) return no_space(rt, what, bytes, code);
  space->capacity = rounded;
  rt->allocations++;
  return address(i);
}

/* A larger buffer with the same contents in front, larger by half at least. */
static smelt_addr extend_space(smelt_rt *rt, uint32_t i, uint64_t bytes, const char *what) {
  rt_device *d = rt->device;
  cl_space *space = &d->spaces[i], old = *space;
  if (!old.memory) return grow_space(rt, i, bytes, what);
  if (bytes <= old.capacity) return address(i);
  uint64_t roomy = old.capacity + old.capacity / 2, wanted = bytes > roomy || too_many(roomy) ? bytes : roomy;
  if (too_many(wanted)) return no_space(rt, what, bytes, 0);
  uint64_t rounded = (wanted + UNIT - 1) / UNIT * UNIT;
  int32_t code = 0;
  cl_handle memory = d->cl.clCreateBuffer(d->context, CL_MEM_READ_WRITE, (size_t)rounded, NULL, &code);
  if (!memory) return no_space(rt, what, bytes, code);
  code = d->cl.clEnqueueCopyBuffer(d->queue, old.memory, memory, 0, 0, (size_t)old.capacity, 0, NULL, NULL);
  release_space(d, space); /* the driver keeps it until the copy is done */
  space->memory = memory;
  space->capacity = rounded;
  rt->allocations++;
  if (code) return cl_failed(rt, "copy", code), 0;
  return address(i);
}

smelt_addr rt_device_arena(smelt_rt *rt, uint32_t arena, uint64_t bytes, int keep) {
  return (keep ? extend_space : grow_space)(rt, rt->device->first_arena + arena, bytes, "working memory");
}
smelt_addr rt_device_output(smelt_rt *rt, uint32_t output, uint64_t bytes) {
  return grow_space(rt, rt->device->first_output + output, bytes, rt->model->outputs[output].name);
}
smelt_addr rt_device_weights(const smelt_rt *rt) { return rt->model->weights_bytes ? address(WEIGHTS_SPACE) : 0; }

uint64_t rt_device_arena_capacity(const smelt_rt *rt) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < rt->model->n_arenas; i++) bytes += rt->device->spaces[rt->device->first_arena + i].capacity;
  return bytes;
}

void rt_device_trim(smelt_rt *rt) {
  rt_device *d = rt->device;
  if (d->pid != sm_getpid()) return;
  for (uint32_t i = d->first_arena; i < d->n_spaces; i++) release_space(d, &d->spaces[i]);
}

int32_t rt_device_check(smelt_rt *rt) {
  if (rt->device->pid == sm_getpid()) return SMELT_OK;
  return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': the session was opened before a fork, which drivers do not survive; open it in the child",
                  rt->device->name);
}

int32_t rt_device_begin(smelt_rt *rt) {
  rt_device *d = rt->device;
  for (uint32_t i = 0; i < rt->model->n_inputs; i++) {
    rt->input_at[i] = grow_space(rt, d->first_input + i, rt->input_bytes[i], rt->model->inputs[i].name);
    if (!rt->input_at[i]) return SMELT_DEVICE;
    if (!rt->input_bytes[i]) continue;
    int32_t code = d->cl.clEnqueueWriteBuffer(d->queue, d->spaces[d->first_input + i].memory, 0, 0, (size_t)rt->input_bytes[i],
                                              rt->input_host[i], 0, NULL, NULL);
    if (code) return cl_failed(rt, "upload of an input", code);
  }
  return SMELT_OK;
}

int32_t rt_device_finish(smelt_rt *rt) {
  rt_device *d = rt->device;
  for (uint32_t i = 0; i < rt->model->n_outputs; i++) {
    rt_output *out = &rt->outputs[i];
    if (!out->at || !out->bytes) continue;
    int32_t code = d->cl.clEnqueueReadBuffer(d->queue, d->spaces[d->first_output + i].memory, 0, 0, (size_t)out->bytes, out->host, 0, NULL, NULL);
    if (code) return cl_failed(rt, "download of an output", code);
  }
  int32_t code = d->cl.clFinish(d->queue);
  return code ? cl_failed(rt, "clFinish", code) : SMELT_OK;
}

void rt_device_drain(smelt_rt *rt) { rt->device->cl.clFinish(rt->device->queue); }

int32_t rt_device_read(smelt_rt *rt, smelt_addr at, void *to, uint64_t bytes) {
  rt_device *d = rt->device;
  int32_t code = d->cl.clEnqueueReadBuffer(d->queue, d->spaces[space_of(at)].memory, 1, offset_of(at), (size_t)bytes, to, 0, NULL, NULL);
  return code ? cl_failed(rt, "read of an element", code) : SMELT_OK;
}

int32_t rt_device_write(smelt_rt *rt, smelt_addr at, const void *from, uint64_t bytes) {
  rt_device *d = rt->device;
  int32_t code = d->cl.clEnqueueWriteBuffer(d->queue, d->spaces[space_of(at)].memory, 1, offset_of(at), (size_t)bytes, from, 0, NULL, NULL);
  return code ? cl_failed(rt, "write of an element", code) : SMELT_OK;
}

int32_t rt_device_copy(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt_device *d = rt->device;
  uint64_t distance = to > from ? (uint64_t)(to - from) : (uint64_t)(from - to);
  if (distance < bytes) { /* overlapping, which OpenCL refuses: on the host then */
    const int64_t both[2] = {to, from};
    int32_t status = rt_device_map(rt, both, 2, 0);
    if (status) return status;
    memmove((void *)(intptr_t)rt->mapped_args[0], (const void *)(intptr_t)rt->mapped_args[1], (size_t)bytes);
    return rt_device_unmap(rt);
  }
  int32_t code = d->cl.clEnqueueCopyBuffer(d->queue, d->spaces[space_of(from)].memory, d->spaces[space_of(to)].memory, offset_of(from),
                                           offset_of(to), (size_t)bytes, 0, NULL, NULL);
  return code ? cl_failed(rt, "copy", code) : SMELT_OK;
}

/* ---- work ---- */
int32_t rt_device_launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups) {
  rt_device *d = rt->device;
  const smelt_kernel_desc *desc = &rt->model->kernels[id];
  if (!d) return rt_error(rt, SMELT_INTERNAL, "kernel '%s' is for a device, model '%s' has no device code; compile it again", desc->name, rt->model->name);
  cl_handle kernel = d->kernels[id];
  uint32_t at = 0;
  int32_t code = 0;
  for (int32_t i = 0; i < desc->n_buffers; i++) {
    uint64_t offset = offset_of(args[i]);
    code |= d->cl.clSetKernelArg(kernel, at++, sizeof(cl_handle), &d->spaces[space_of(args[i])].memory);
    code |= d->cl.clSetKernelArg(kernel, at++, sizeof offset, &offset);
  }
  for (int32_t i = 0; i < desc->n_dims; i++) code |= d->cl.clSetKernelArg(kernel, at++, sizeof(int64_t), &args[desc->n_buffers + i]);
  code |= d->cl.clSetKernelArg(kernel, at, sizeof groups, &groups);
  if (code) return cl_failed(rt, desc->name, code);
  size_t lanes = desc->lane_count > 0 ? (size_t)desc->lane_count : 1, all;
  if (__builtin_mul_overflow((uint64_t)groups, lanes, &all) || all > SIZE_MAX / 2)
    return rt_error(rt, SMELT_SHAPE, "kernel '%s' wants %lld groups of %d work-items, more than this device can count; use smaller shapes",
                    desc->name, (long long)groups, (int)lanes);
  code = d->cl.clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &all, &lanes, 0, NULL, NULL);
  return code ? cl_failed(rt, desc->name, code) : SMELT_OK;
}

int32_t rt_device_map(smelt_rt *rt, const int64_t *args, int32_t n_buffers, int32_t n_dims) {
  rt_device *d = rt->device;
  for (int32_t i = 0; i < n_buffers; i++) {
    uint32_t at = space_of(args[i]);
    cl_space *space = &d->spaces[at];
    if (space->memory && !space->mapped) {
      int32_t code = 0;
      uint64_t flags = at == WEIGHTS_SPACE ? CL_MAP_READ : CL_MAP_READ | CL_MAP_WRITE;
      space->mapped = d->cl.clEnqueueMapBuffer(d->queue, space->memory, 1, flags, 0, (size_t)space->capacity, 0, NULL, NULL, &code);
      if (!space->mapped) {
        rt_device_unmap(rt);
        return cl_failed(rt, "mapping a buffer for the host", code);
      }
    }
    rt->mapped_args[i] = space->mapped ? (int64_t)(intptr_t)(space->mapped + offset_of(args[i])) : 0;
  }
  if (n_dims) memcpy(rt->mapped_args + n_buffers, args + n_buffers, (size_t)n_dims * sizeof *args);
  return SMELT_OK;
}

int32_t rt_device_unmap(smelt_rt *rt) {
  rt_device *d = rt->device;
  int32_t code = 0;
  for (uint32_t i = 0; i < d->n_spaces; i++) {
    if (!d->spaces[i].mapped) continue;
    code |= d->cl.clEnqueueUnmapMemObject(d->queue, d->spaces[i].memory, d->spaces[i].mapped, 0, NULL, NULL);
    d->spaces[i].mapped = NULL;
  }
  return code ? cl_failed(rt, "unmapping a buffer", code) : SMELT_OK;
}
