/* runner_units.c: what only a program that loads libraries can ask of a board; SMELT_STATIC loads none. */
#include "runner_units.h"

#include "runner_facts.h"

#ifdef SMELT_STATIC
void put_units(buffer *b) {
  put(b, "[{\"api\":\"\",\"device\":\"\",\"version\":\"\",\"driver\":\"\",\"extensions\":\"\",\"error\":\"a static runner loads no drivers\"}]");
}
void put_libc(buffer *b) { put(b, "\"static\""); }
#else

static const uint64_t UNITS_NS = 8000000000u;
enum { MOST_DEVICES = 8, TEXT_CAP = 1 << 14, ANSWER_CAP = 1 << 20 };

typedef struct {
  buffer *b;
  int rows;
} rows;

static void row(rows *r, const char *api, const char *device, const char *version, const char *driver, const char *extensions,
                const char *error) {
  put_format(r->b, "%s{\"api\":%q,\"device\":%q,\"version\":%q,\"driver\":%q,\"extensions\":%q,\"error\":%q}", r->rows++ ? "," : "",
             api, device, version, driver, extensions, error);
}

static void failed(rows *r, const char *api, const char *what, int64_t code) {
  char text[96];
  buffer why = {(uint8_t *)text, 0, 0, sizeof text};
  put_format(&why, "%s failed with code %i", what, code);
  text[why.len] = 0;
  row(r, api, "", "", "", "", text);
}

/* The first of these libraries that can be loaded; the list ends with NULL. It is never unloaded: drivers own threads. */
static void *load(const char *const *names) {
  void *library = NULL;
  for (; !library && *names; names++) library = dlopen(*names, RUNNER_RTLD_NOW);
  return library;
}

/* The functions of these names into `to`, a row of pointers; 0, or -1 when one is missing. */
static int bind(void *library, const char *const *names, void *to) {
  for (size_t i = 0; names[i]; i++) {
    void *at = dlsym(library, names[i]);
    if (!at) return -1;
    memcpy((char *)to + i * sizeof at, &at, sizeof at);
  }
  return 0;
}

/* ---- OpenCL ---- */
typedef struct {
  int32_t (*platforms)(uint32_t, void **, uint32_t *);
  int32_t (*devices)(void *, uint64_t, uint32_t, void **, uint32_t *);
  int32_t (*info)(void *, uint32_t, size_t, void *, size_t *);
} cl_calls;

static void opencl_device(rows *r, const cl_calls *cl, void *device) {
  static char texts[4][TEXT_CAP];
  static const uint32_t fields[] = {0x102b /* name */, 0x102f /* version */, 0x102d /* driver */, 0x1030 /* extensions */};
  for (int i = 0; i < 4; i++) {
    memset(texts[i], 0, TEXT_CAP);
    if (cl->info(device, fields[i], TEXT_CAP - 1, texts[i], NULL)) texts[i][0] = 0;
  }
  row(r, "opencl", texts[0], texts[1], texts[2], texts[3], "");
}

static void probe_opencl(rows *r) {
  static const char *const files[] = {"libOpenCL.so.1", "libOpenCL.so", "libOpenCL-pixel.so", "libGLES_mali.so", "libPVROCL.so",
                                      "/vendor/lib64/libOpenCL.so", "/vendor/lib64/egl/libGLES_mali.so", "/vendor/lib/libOpenCL.so", NULL};
  static const char *const names[] = {"clGetPlatformIDs", "clGetDeviceIDs", "clGetDeviceInfo", NULL};
  void *library = load(files), *platforms[MOST_DEVICES], *devices[MOST_DEVICES];
  cl_calls cl;
  uint32_t n = 0;
  if (!library || bind(library, names, &cl)) return;
  int32_t code = cl.platforms(MOST_DEVICES, platforms, &n);
  if (code || !n) return failed(r, "opencl", "clGetPlatformIDs", code);
  for (uint32_t i = 0; i < n && i < MOST_DEVICES; i++) {
    uint32_t m = 0;
    code = cl.devices(platforms[i], 0xffffffffu, MOST_DEVICES, devices, &m);
    if (code) failed(r, "opencl", "clGetDeviceIDs", code);
    for (uint32_t k = 0; !code && k < m && k < MOST_DEVICES; k++) opencl_device(r, &cl, devices[k]);
  }
}

/* ---- Vulkan ---- */
typedef struct {
  int32_t (*create)(const void *, const void *, void **);
  int32_t (*devices)(void *, uint32_t *, void **);
  void (*properties)(void *, void *);
  int32_t (*extensions)(void *, const char *, uint32_t *, void *);
} vk_calls;
typedef struct { /* the start of VkPhysicalDeviceProperties; all of it has less than 1 KiB */
  uint32_t api, driver, maker, id, kind;
  char name[256];
  char rest[1024];
} vk_properties;
typedef struct { char name[256]; uint32_t version; } vk_extension;
enum { MOST_EXTENSIONS = 1024 };

static void vulkan_device(rows *r, const vk_calls *vk, void *device) {
  static vk_properties p;
  static vk_extension extensions[MOST_EXTENSIONS];
  char version[96], driver[96];
  buffer v = {(uint8_t *)version, 0, 0, sizeof version}, d = {(uint8_t *)driver, 0, 0, sizeof driver}, names = {0};
  uint32_t n = MOST_EXTENSIONS;
  vk->properties(device, &p);
  put_format(&v, "%u.%u.%u", U(p.api >> 22), U(p.api >> 12 & 0x3ff), U(p.api & 0xfff));
  put_format(&d, "0x%x, maker 0x%x, device 0x%x", U(p.driver), U(p.maker), U(p.id));
  version[v.len] = driver[d.len] = 0;
  if (vk->extensions(device, NULL, &n, extensions) < 0) n = 0;
  for (uint32_t i = 0; i < n; i++) put_format(&names, "%s%s", i ? " " : "", extensions[i].name);
  put_n(&names, "", 1);
  row(r, "vulkan", p.name, version, driver, names.at ? (const char *)names.at : "", "");
}

static void probe_vulkan(rows *r) {
  static const char *const files[] = {"libvulkan.so.1", "libvulkan.so", NULL}; /* the second on Android */
  static const char *const names[] = {"vkCreateInstance", "vkEnumeratePhysicalDevices", "vkGetPhysicalDeviceProperties",
                                      "vkEnumerateDeviceExtensionProperties", NULL};
  struct { uint32_t kind; const void *next; uint32_t flags; const void *application; uint32_t layers; const char *const *layer_names;
           uint32_t extensions; const char *const *extension_names; } create; /* VkInstanceCreateInfo, kind 1 */
  void *library = load(files), *instance = NULL, *devices[MOST_DEVICES];
  uint32_t n = MOST_DEVICES;
  vk_calls vk;
  if (!library || bind(library, names, &vk)) return;
  memset(&create, 0, sizeof create);
  create.kind = 1;
  int32_t code = vk.create(&create, NULL, &instance);
  if (code) return failed(r, "vulkan", "vkCreateInstance", code);
  code = vk.devices(instance, &n, devices);
  if (code < 0) return failed(r, "vulkan", "vkEnumeratePhysicalDevices", code);
  for (uint32_t i = 0; i < n; i++) vulkan_device(r, &vk, devices[i]);
}

/* ---- CUDA ---- */
typedef struct {
  int32_t (*init)(uint32_t), (*version)(int32_t *), (*count)(int32_t *), (*get)(int32_t *, int32_t), (*name)(char *, int32_t, int32_t),
      (*attribute)(int32_t *, int32_t, int32_t);
} cu_calls;

static void probe_cuda(rows *r) {
  static const char *const files[] = {"libcuda.so.1", NULL};
  static const char *const names[] = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
                                      "cuDeviceGetAttribute", NULL};
  void *library = load(files);
  int32_t version = 0, count = 0, device = 0, major = 0, minor = 0;
  cu_calls cu;
  if (!library || bind(library, names, &cu)) return;
  int32_t code = cu.init(0);
  if (code || (code = cu.count(&count))) return failed(r, "cuda", "cuInit", code);
  cu.version(&version);
  for (int32_t i = 0; i < count && i < MOST_DEVICES; i++) {
    char name[256] = {0}, able[64], driver[64];
    buffer a = {(uint8_t *)able, 0, 0, sizeof able}, d = {(uint8_t *)driver, 0, 0, sizeof driver};
    if (cu.get(&device, i)) continue;
    cu.name(name, sizeof name - 1, device);
    cu.attribute(&major, 75, device);
    cu.attribute(&minor, 76, device);
    put_format(&a, "sm_%i%i", I(major), I(minor));
    put_format(&d, "%i", I(version));
    able[a.len] = driver[d.len] = 0;
    row(r, "cuda", name, able, driver, "", "");
  }
}

/* ---- all of them, in a child ---- */
static void probe(int out) {
  static void (*const probes[])(rows *) = {probe_opencl, probe_vulkan, probe_cuda};
  int null = sys_open("/dev/null", SYS_O_RDWR);
  sys_prctl(1 /* PR_SET_PDEATHSIG */, SYS_SIGKILL);
  for (int fd = 0; fd < 3 && null >= 0; fd++) sys_dup_to(null, fd); /* drivers print */
  for (int i = 0; i < 3; i++) { /* rows that are complete arrive even if the next driver crashes */
    buffer made = {0};
    rows r = {&made, 0};
    probes[i](&r);
    if (r.rows) put(&made, ",");
    write_all(out, made.at, made.len);
  }
  sys_exit(0);
}

void put_units(buffer *b) {
  static const char sign[] = "a driver crashed, or took longer than 8 s";
  int ends[2], status = 0;
  uint64_t until = sys_now() + UNITS_NS;
  buffer answer = {0};
  int pid = sys_pipe(ends) < 0 ? -1 : fork();
  if (pid == 0) probe(ends[1]);
  if (pid < 0) return put(b, "[]");
  sys_close(ends[1]);
  for (long n = 1; n > 0 && answer.len < ANSWER_CAP;) {
    uint64_t now = sys_now();
    sys_pollfd fd = {ends[0], SYS_POLLIN, 0};
    n = now < until ? sys_poll(&fd, 1, I(until - now)) : 0;
    if (n == -SYS_EINTR) n = 1;
    else if (n > 0) n = buffer_reserve(&answer, 4096) ? 0 : sys_read(ends[0], answer.at + answer.len, 4096);
    else break;
    if (fd.revents && n > 0) answer.len += (size_t)n;
  }
  sys_close(ends[0]);
  if (sys_now() >= until || answer.len >= ANSWER_CAP) sys_kill(pid, SYS_SIGKILL);
  while (sys_wait(pid, &status, 0) == -SYS_EINTR) {}
  put(b, "[");
  size_t whole = answer.len;
  while (whole && !(answer.at[whole - 1] == ',' && whole > 1 && answer.at[whole - 2] == '}')) whole--;
  rows r = {b, 0};
  if (whole) put_n(b, (const char *)answer.at, whole - 1);
  r.rows = whole > 0;
  if (status) row(&r, "", "", "", "", "", sign);
  put(b, "]");
  if (answer.cap) sys_unmap(answer.at, answer.cap);
}

void put_libc(buffer *b) {
#if defined(__ANDROID__)
  void *found = dlsym((void *)(sizeof(void *) == 4 ? -1L : 0L), "__system_property_get");
  int (*property)(const char *, char *);
  char sdk[92] = {0};
  memcpy(&property, &found, sizeof found);
  if (found) property("ro.build.version.sdk", sdk);
  put(b, "\"bionic");
  if (sdk[0] >= '0' && sdk[0] <= '9') put_format(b, " %u", number_after(sdk, ""));
  put(b, "\"");
#else
  void *found = dlsym(NULL, "gnu_get_libc_version");
  const char *(*version)(void);
  memcpy(&version, &found, sizeof found);
  if (!found) return put(b, "\"dynamic\"");
  put(b, "\"glibc ");
  put(b, version());
  put(b, "\"");
#endif
}
#endif
