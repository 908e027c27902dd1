/* failing.c: a loader of Vulkan or OpenCL for tests that stands before the machine's own, whose path REAL_LOADER names. All calls go
 * there, but some fail as calls of a broken device do:
 *
 *   FAILS_AFTER=n   so many submits (Vulkan) or launches (OpenCL) succeed, then the device is lost
 *   REFUSES=name    this kernel is compiled by nobody
 *   REFUSALS=n      or, by Vulkan's, after so many tries
 *   REFUSES_IF=c    nothing is compiled where this condition of the preprocessor holds (OpenCL)
 *   LANES=n         the device's vectors have so many floats (OpenCL)
 *
 * x86-64 alone: functions that are passed on are jumps. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *real;
static void load(void) {
  if (!real) real = dlopen(getenv("REAL_LOADER"), RTLD_NOW);
  if (!real) abort();
}

/* Whether this call, of those that are counted, fails. */
static int fails(void) {
  static long calls;
  const char *text = getenv("FAILS_AFTER");
  return text && calls++ >= atol(text);
}

#ifdef VULKAN
enum { DEVICE_LOST = -4, NO_SHADER = -1000012000 };
typedef void *(*finder)(void *, const char *);

typedef struct { int32_t type; const void *next; uint32_t flags, stage; uint64_t module; const char *name; const void *special; } stage;
typedef struct { int32_t type; const void *next; uint32_t flags; stage stage; uint64_t layout, base; int32_t index; } pipeline;

static int32_t (*submit)(void *, uint32_t, const void *, uint64_t);
static int32_t (*create)(void *, uint64_t, uint32_t, const pipeline *, const void *, uint64_t *);

static int32_t submit_or_fail(void *queue, uint32_t n, const void *what, uint64_t fence) {
  return fails() ? DEVICE_LOST : submit(queue, n, what, fence);
}
static int32_t create_or_fail(void *device, uint64_t cache, uint32_t n, const pipeline *what, const void *a, uint64_t *out) {
  static int refusals;
  const char *name = getenv("REFUSES"), *most = getenv("REFUSALS");
  int refuses = name && !strcmp(what->stage.name, name) && (!most || refusals++ < atoi(most));
  return refuses ? NO_SHADER : create(device, cache, n, what, a, out);
}

void *vkGetInstanceProcAddr(void *instance, const char *name) {
  load();
  void *at = ((finder)dlsym(real, "vkGetInstanceProcAddr"))(instance, name);
  if (at && !strcmp(name, "vkQueueSubmit")) return memcpy(&submit, &at, sizeof at), (void *)submit_or_fail;
  if (at && !strcmp(name, "vkCreateComputePipelines")) return memcpy(&create, &at, sizeof at), (void *)create_or_fail;
  return at;
}
#else
enum { OUT_OF_RESOURCES = -5 };
#define PASSED_ON(X)                                                                                                            \
  X(clGetPlatformIDs) X(clGetDeviceIDs) X(clCreateContext) X(clCreateCommandQueue) X(clCreateBuffer)          \
  X(clCreateProgramWithBinary) X(clGetProgramInfo) X(clBuildProgram) X(clGetProgramBuildInfo) X(clCreateKernel)                  \
  X(clGetKernelWorkGroupInfo) X(clSetKernelArg) X(clEnqueueReadBuffer) X(clEnqueueWriteBuffer) X(clEnqueueCopyBuffer)            \
  X(clEnqueueMapBuffer) X(clEnqueueUnmapMemObject) X(clEnqueueMarkerWithWaitList) X(clGetEventInfo) X(clReleaseEvent)             \
  X(clGetEventProfilingInfo) X(clFlush) X(clSetEventCallback)                                                                                          \
  X(clGetMemObjectInfo) X(clReleaseMemObject) X(clReleaseKernel) X(clReleaseProgram) X(clReleaseCommandQueue) X(clReleaseContext)
#define JUMP(name)                                             \
  static __attribute__((used)) void *at_##name;                \
  __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *at_" #name "(%rip)\n");
PASSED_ON(JUMP)

__attribute__((constructor)) static void find_all(void) {
  load();
#define FIND(name) at_##name = dlsym(real, #name);
  PASSED_ON(FIND)
}

int32_t clGetDeviceInfo(void *device, uint32_t what, size_t room, void *value, size_t *bytes) {
  enum { NATIVE_VECTOR_WIDTH_FLOAT = 0x103A };
  int32_t (*ask)(void *, uint32_t, size_t, void *, size_t *);
  void *at = dlsym(real, "clGetDeviceInfo");
  memcpy(&ask, &at, sizeof at);
  int32_t code = ask(device, what, room, value, bytes);
  const char *lanes = getenv("LANES");
  if (lanes && !code && what == NATIVE_VECTOR_WIDTH_FLOAT && room == 4) *(uint32_t *)value = (uint32_t)atol(lanes);
  return code;
}

/* So that launches go one by one. */
void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name) { return (void)platform, (void)name, NULL; }

int32_t clEnqueueNDRangeKernel(void *queue, void *kernel, uint32_t n, const size_t *offset, const size_t *all, const size_t *local, uint32_t waits,
                               const void *events, void *event) {
  int32_t (*launch)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const void *, void *);
  void *at = dlsym(real, "clEnqueueNDRangeKernel");
  memcpy(&launch, &at, sizeof at);
  return fails() ? OUT_OF_RESOURCES : launch(queue, kernel, n, offset, all, local, waits, events, event);
}

void *clCreateProgramWithSource(void *context, uint32_t n, const char **texts, const size_t *lengths, int32_t *code) {
  void *(*make)(void *, uint32_t, const char **, const size_t *, int32_t *), *at = dlsym(real, "clCreateProgramWithSource");
  memcpy(&make, &at, sizeof at);
  const char *name = getenv("REFUSES"), *condition = getenv("REFUSES_IF");
  char wrong[600];
  if (!name && !condition) return make(context, n, texts, lengths, code);
  const char *all_of = name && strstr(name, "chain") ? "!defined(ONE) && !defined(ALONE)" : "!defined(ONE)";
  if (condition) snprintf(wrong, sizeof wrong, "\n#if %.400s\nno C at all;\n#endif\n", condition);
  else snprintf(wrong, sizeof wrong, "\n#if %s || defined(ONE_%.200s)\nno C at all;\n#endif\n", all_of, name);
  const char *both[] = {texts[0], wrong};
  const size_t sizes[] = {lengths[0], strlen(wrong)};
  return make(context, 2, both, sizes, code);
}
#endif
