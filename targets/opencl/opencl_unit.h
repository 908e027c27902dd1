/* opencl_unit.h: a unit of OpenCL, and its opening: the vendor's library, a device, the program that it makes of the unit's code. */
#ifndef SMELT_OPENCL_UNIT_H
#define SMELT_OPENCL_UNIT_H
#include "driver.h"
#include "rt.h"

/* ---- the part of OpenCL 1.2 that is used ---- */
typedef void *cl_handle;
enum {
  CL_DEVICE_TYPE_CPU = 1 << 1, CL_DEVICE_TYPE_GPU = 1 << 2, CL_DEVICE_TYPE = 0x1000, CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D, CL_DEVICE_VERSION = 0x102F, CL_PROGRAM_BINARY_SIZES = 0x1165, CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183, CL_KERNEL_WORK_GROUP_SIZE = 0x11B0, CL_KERNEL_COMPILE_WORK_GROUP_SIZE = 0x11B1, CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
  CL_DEVICE_DOUBLE_FP_CONFIG = 0x1032, CL_EVENT_STATUS = 0x11D3, CL_QUEUE_PROFILING = 2, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A, CL_PROFILING_START = 0x1282,
  CL_PROFILING_END = 0x1283,
  CL_MEM_READ_WRITE = 1, CL_MEM_READ_ONLY = 4, CL_MEM_USE_HOST_PTR = 8, CL_MEM_ALLOC_HOST_PTR = 16, CL_MEM_COPY_HOST_PTR = 32, CL_MAP_READ = 1,
  CL_MAP_WRITE = 2, CL_INVALID_KERNEL_NAME = -46
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
  X(int32_t, clEnqueueMarkerWithWaitList, (cl_handle, uint32_t, const void *, cl_handle *))                                      \
  X(int32_t, clGetEventInfo, (cl_handle, uint32_t, size_t, void *, size_t *))                                                    \
  X(int32_t, clReleaseEvent, (cl_handle))                                                                                        \
  X(int32_t, clGetEventProfilingInfo, (cl_handle, uint32_t, size_t, void *, size_t *))                                           \
  X(int32_t, clSetEventCallback, (cl_handle, int32_t, void (*)(cl_handle, int32_t, void *), void *))                              \
  X(int32_t, clFlush, (cl_handle))                                                                                               \
  X(void *, clGetExtensionFunctionAddressForPlatform, (cl_handle, const char *))                                                 \
  X(int32_t, clGetMemObjectInfo, (cl_handle, uint32_t, size_t, void *, size_t *))                                                \
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

/* Memory that the host and the device see at once, where the device has it (OpenCL 2.0). */
enum { CL_DEVICE_SVM_CAPABILITIES = 0x1053, CL_SVM_FINE_GRAIN = 1 << 1, CL_MEM_FINE_GRAIN = 1 << 10, CL_MEM_FLAGS = 0x1101, CL_MEM_HOST_PTR = 0x1103 };
typedef struct {
  void *(*allocate)(cl_handle, uint64_t, size_t, uint32_t);
  void (*free)(cl_handle, void *);
} cl_sharing;

/* Where drivers live; the later ones are Android vendors' (the loader's own name is not public everywhere). */
static const char *const driver_files[] = {"libOpenCL.so.1", "libOpenCL.so", "libOpenCL-pixel.so", "libGLES_mali.so", "libPVROCL.so",
                                           "/vendor/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so",
                                           "/system/vendor/lib64/libOpenCL.so", "/vendor/lib/libOpenCL.so"};

/* A kernel with the arguments that it was last given: those that stay are not set again. */
typedef struct {
  cl_handle handle; /* NULL: of another unit */
  uint64_t *args;   /* its words, then its memories; NULL: unknown, all are to be set */
  uint64_t epoch;
  size_t lanes; /* of a group, as its code says; that may have several of them for each of the model's, or one item for a chain's lanes */
  size_t items; /* of one of the model's groups */
} cl_kernel;

/* A read that waits until the device has ended: a device that does not end must not write to a caller's memory when it is another's. */
typedef struct {
  cl_handle memory;
  size_t offset, bytes;
  void *host;
} cl_read;

typedef struct {
  cl_handle buffer;   /* NULL: a launch alone, which is asked for by itself: as a list PoCL 3.1 takes 10 to 40 us more for it */
  size_t all, lanes;  /* the work-items of that launch, and of its groups */
  uint64_t submitted; /* cl_unit.finishes at that time, and 1 */
  uint32_t n;
  cl_handle kernels[]; /* one for each command: PoCL 3.1 reads a kernel's arguments when the list runs, not when it is recorded */
} cl_list;

enum { CL_TIMED = 64, CL_MARKS = 64, CL_LANDING = 1 << 16 };
static const uint64_t CL_SHORT = 300000; /* ns; to be told takes up to a third of it, so work is on one side of it however it is waited for */
typedef struct {
  cl_api cl;
  const smelt_model_desc *model;
  const smelt_unit_desc *desc;
  uint32_t unit;
  cl_handle platform, device, context, queue, program;
  cl_kernel *kernels; /* per kernel id */
  int64_t *words;     /* room for those of any kernel */
  uint64_t memory_epoch; /* how often memory has been given back: its handle may come again for another one */
  cl_recording recording; /* all NULL: the device does not record */
  int32_t simultaneous;   /* a list may be submitted while it runs */
  uint32_t unified;       /* the device's memory is the host's: weights are used where they are, and what crosses is not copied */
  cl_sharing sharing;     /* NULL: the host sees the device's memory by commands alone */
  uint64_t finishes;
  cl_read *reads;
  uint32_t n_reads, room_reads;
  int32_t alone; /* the driver refused chains */
  int32_t busy; /* it may be working */
  int32_t hung; /* it has not ended in time */
  int32_t processor; /* its work is done by processors of the host */
  uint64_t waited; /* ns of the last wait */
  cl_handle marks[CL_MARKS];  /* events of points, by number; of those that have a later one's place nobody knows */
  cl_handle last;             /* the event of what was asked for last, where that is work; else NULL: a marker is put behind it */
  uint64_t marked;            /* the last point's number */
  cl_handle plain;            /* the queue that `queue` stands for while times are taken; else NULL */
  cl_handle timed[CL_TIMED];  /* events of launches since somebody asked */
  uint32_t n_timed;           /* of all of them, also those that had no room */
  char name[96];
  char options[120]; /* of every build */
  char landing[CL_LANDING]; /* where small reads wait until the device has ended */
} cl_unit;

static const char *cl_told(int32_t code) { return (void)code, "see CL_* in CL/cl.h, or compile without +opencl"; }

static int32_t cl_failed(smelt_rt *rt, const cl_unit *u, const char *what, int32_t code) {
  return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': %s failed with code %d; %s", u->name, what, (int)code, cl_told(code));
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
  void *allocate = dlsym(driver, "clSVMAlloc"), *free_it = dlsym(driver, "clSVMFree");
  if (allocate && free_it) memcpy(&u->sharing.allocate, &allocate, sizeof allocate), memcpy(&u->sharing.free, &free_it, sizeof free_it);
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
  const char *weak = getenv("SMELT_OPENCL_WEAK");
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof u->unified, &u->unified, NULL);
  if (weak && strstr(weak, "unified=0")) u->unified = 0;
  uint64_t able = 0, type = 0;
  u->processor = !u->cl.clGetDeviceInfo(u->device, CL_DEVICE_TYPE, sizeof type, &type, NULL) && (type & CL_DEVICE_TYPE_CPU);
  code = u->cl.clGetDeviceInfo(u->device, CL_DEVICE_SVM_CAPABILITIES, sizeof able, &able, NULL);
  if (code || !u->unified || !(able & CL_SVM_FINE_GRAIN) || (weak && strstr(weak, "shared=0"))) u->sharing = (cl_sharing){0};
  u->context = u->cl.clCreateContext(NULL, 1, &u->device, NULL, NULL, &code);
  if (!u->context) return cl_failed(rt, u, "clCreateContext", code);
  u->queue = u->cl.clCreateCommandQueue(u->context, u->device, 0, &code);
  return u->queue ? SMELT_OK : cl_failed(rt, u, "clCreateCommandQueue", code);
}

/* A device whose vectors are half of the language's widest, or less, makes tiles of sums in two parts, which its registers hold. A
 * processor has few threads for groups, which small ones share more evenly. */
static void set_options(cl_unit *u) {
  uint32_t lanes = 1;
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof lanes, &lanes, NULL);
  snprintf(u->options, sizeof u->options, "-cl-std=CL1.2%s%s%s", u->model->keep_subnormals ? "" : " -cl-denorms-are-zero",
           lanes > 1 && lanes < 16 ? " -DTILE_PARTS=2" : "", u->processor ? " -DSMALL_GROUPS" : "");
}

/* What a binary depends on besides the code. */
static void describe(const cl_unit *u, char *key, size_t room) {
  char driver[128] = "", device[128] = "";
  u->cl.clGetDeviceInfo(u->device, CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
  u->cl.clGetDeviceInfo(u->device, CL_DEVICE_VERSION, sizeof device - 1, device, NULL);
  snprintf(key, room, "%s|%s|%s|%s", u->name, driver, device, u->options);
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
  if (u->program && !code && !taken && !u->cl.clBuildProgram(u->program, 1, &u->device, u->options, NULL, NULL)) return 1;
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
static int keeps_binaries(const cl_unit *u) { return !u->processor || getenv("SMELT_OPENCL_BINARIES"); }

/* The build log of a program, to be freed; NULL: there is none. */
static char *log_of(const cl_unit *u, cl_handle program) {
  size_t bytes = 0;
  u->cl.clGetProgramBuildInfo(program, u->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char *log = malloc(bytes + 1);
  if (!log) return NULL;
  log[0] = 0;
  u->cl.clGetProgramBuildInfo(program, u->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
  log[bytes] = 0;
  return log;
}

/* Compile with more options; NULL where that works, else what the driver says, to be freed. */
static char *attempt(const cl_unit *u, const char *more) {
  const char *text = u->desc->code;
  const size_t length = (size_t)u->desc->code_bytes;
  char options[640], *log = NULL;
  int32_t code = 0;
  snprintf(options, sizeof options, "%s -DONE%.400s", u->options, more);
  cl_handle program = u->cl.clCreateProgramWithSource(u->context, 1, &text, &length, &code);
  if (program && u->cl.clBuildProgram(program, 1, &u->device, options, NULL, NULL)) log = log_of(u, program);
  if (program) u->cl.clReleaseProgram(program);
  return log;
}

/* The first kernel that the driver does not compile by itself, and what it says of that; NULL: it is none, but what all have. */
static const char *find_refused(const cl_unit *u, char **log) {
  char one[420];
  if ((*log = attempt(u, ""))) return NULL;
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    const smelt_kernel_desc *kernel = &u->model->kernels[i];
    if ((uint32_t)kernel->unit != u->unit || snprintf(one, sizeof one, " -DONE_%s", kernel->name) >= (int)sizeof one) continue;
    if ((*log = attempt(u, one))) return kernel->name;
  }
  return NULL;
}

static int32_t refused(smelt_rt *rt, cl_unit *u, int32_t code) {
  char told[400], *log = NULL;
  const char *kernel = find_refused(u, &log);
  if (!log) log = log_of(u, u->program);
  smelt_rt_refused("cl", u->desc->code, (size_t)u->desc->code_bytes, log ? log : "", told, sizeof told);
  rt_error(rt, SMELT_DEVICE, "OpenCL device '%s' refused %s%.200s (code %d%s): %.300s", u->name, kernel ? "kernel " : "the model's kernels",
           kernel ? kernel : "", (int)code, told, log ? log : "");
  free(log);
  return SMELT_DEVICE;
}

/* Code that needs doubles says so, and for which kernels, in its first line. SMELT_OPENCL_WEAK, which tests set, plays a device
 * without them ("fp64=0"), one with memory of its own ("unified=0"), or one that the host sees by commands alone ("shared=0"). */
static int32_t check_doubles(smelt_rt *rt, cl_unit *u) {
  static const char head[] = "/* fp64: ";
  const char *text = u->desc->code, *weak = getenv("SMELT_OPENCL_WEAK");
  uint64_t has = 0;
  size_t n = 0, all = (size_t)u->desc->code_bytes;
  if (all < sizeof head || strncmp(text, head, sizeof head - 1)) return SMELT_OK;
  if (u->cl.clGetDeviceInfo(u->device, CL_DEVICE_DOUBLE_FP_CONFIG, sizeof has, &has, NULL) || (weak && strstr(weak, "fp64=0"))) has = 0;
  if (has) return SMELT_OK;
  text += sizeof head - 1;
  while (n < all - sizeof head && n < 200 && text[n] != ' ') n++;
  return rt_error(rt, SMELT_UNSUPPORTED,
                  "OpenCL device '%s' lacks the feature cl_khr_fp64, which kernel '%.*s' needs; compute in float32, or place it on the cpu", u->name, (int)n,
                  text);
}

/* Without chains, whose parts are there as well. */
static int32_t build_alone(cl_unit *u) {
  char options[128];
  snprintf(options, sizeof options, "%s -DALONE", u->options);
  return u->cl.clBuildProgram(u->program, 1, &u->device, options, NULL, NULL);
}

static int is_chain(const smelt_model_desc *m, uint32_t id) {
  for (uint32_t i = 0; i < m->n_kernels; i++)
    for (int32_t k = 0; k < m->kernels[i].n_chains; k++)
      if ((uint32_t)m->kernels[i].chains[k].kernel == id) return 1;
  return 0;
}

static int32_t build_program(smelt_rt *rt, cl_unit *u) {
  int32_t code = check_doubles(rt, u);
  const char *text = u->desc->code;
  const size_t length = (size_t)u->desc->code_bytes;
  char key[512];
  set_options(u);
  int keeps = keeps_binaries(u);
  if (code) return code;
  describe(u, key, sizeof key);
  if (keeps && take_binary(rt, u, key)) return SMELT_OK;
  u->program = u->cl.clCreateProgramWithSource(u->context, 1, &text, &length, &code);
  if (!u->program) return cl_failed(rt, u, "clCreateProgramWithSource", code);
  code = u->cl.clBuildProgram(u->program, 1, &u->device, u->options, NULL, NULL);
  if (code && !build_alone(u)) code = 0;
  if (!code && keeps) keep_binary(rt, u, key);
  return code ? refused(rt, u, code) : SMELT_OK;
}

static int32_t create_kernels(smelt_rt *rt, cl_unit *u) {
  size_t words = 0;
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    const smelt_kernel_desc *kernel = &u->model->kernels[i];
    if ((uint32_t)kernel->unit != u->unit) continue;
    int32_t code = 0;
    u->kernels[i].handle = u->cl.clCreateKernel(u->program, kernel->name, &code);
    if (code == CL_INVALID_KERNEL_NAME && is_chain(u->model, i)) {
      u->alone = 1;
      continue;
    }
    if (!u->kernels[i].handle) return cl_failed(rt, u, kernel->name, code);
    size_t own = (size_t)kernel->n_buffers * 2 + (size_t)kernel->n_dims;
    u->kernels[i].args = malloc(own * sizeof *u->kernels[i].args);
    if (own > words) words = own;
    size_t most = 0, said[3] = {0}, lanes = kernel->lane_count > 0 ? (size_t)kernel->lane_count : 1;
    code = u->cl.clGetKernelWorkGroupInfo(u->kernels[i].handle, u->device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof said, said, NULL);
    u->kernels[i].lanes = !code && said[0] && lanes % said[0] == 0 ? said[0] : lanes;
    u->kernels[i].items = is_chain(u->model, i) ? u->kernels[i].lanes : lanes;
    code = u->cl.clGetKernelWorkGroupInfo(u->kernels[i].handle, u->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (!code && u->kernels[i].lanes > most)
      return rt_error(rt, SMELT_DEVICE, "OpenCL device '%s': kernel '%s' wants groups of %d work-items, the device does at most %llu; compile for smaller groups",
                      u->name, kernel->name, (int)u->kernels[i].lanes, (unsigned long long)most);
  }
  u->words = malloc(words * sizeof *u->words + 1);
  return u->words ? SMELT_OK : rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
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
#endif
