/* fake_cuda.c: a libcuda.so.1 without a GPU, for tests. It checks what it is asked for (a current context, memory that is there, bounds),
 * runs kernels that were lowered for the host, launches only when somebody waits, as a GPU does, and fails where it is told to:
 *
 *   FAKE_CUDA_DEVICES=n    how many there are, 1;  FAKE_CUDA_INIT=code   what cuInit says
 *   FAKE_CUDA_ARCH=87      their architecture;     FAKE_CUDA_INTEGRATED=1 they share the host's memory
 *   FAKE_CUDA_MEMORY=n     bytes that there are;   FAKE_CUDA_THREADS=n   threads that a group may have, 1024
 *   FAKE_CUDA_GROUPS=n     groups that a launch may have, 2^31 - 1
 *   FAKE_CUDA_REFUSES=code what loading an image says
 *   FAKE_CUDA_LOST=n       the n-th launch reads where it may not, and the device is lost
 *   FAKE_CUDA_HANGS=n      after n launches no work ends
 *   FAKE_CUDA_ORDER=1      threads take turns last to first
 *   FAKE_CUDA_CODE=file    a library with the kernels, in place of an image that is PTX
 *   FAKE_CUDA_LOCKED=n     bytes of the host that it locks
 *   FAKE_CUDA_STRANGE=1    memory is of another context
 *   FAKE_CUDA_LOG=file     what was called, and at the end what was not given back */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake_threads.h"

enum { INVALID_VALUE = 1, NO_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURING = 900 };
enum { MOST_WORDS = 1024 };

typedef struct allocation {
  struct allocation *next;
  uint64_t at;
  size_t bytes;
} allocation;

typedef struct {
  void *library;
  fake_state *state;
} fake_module;
typedef struct {
  fake_module *module;
  fake_kernel run;
} fake_function;
typedef struct {
  uint64_t at;     /* when it was come to */
  int recorded, no_times;
} fake_event;
typedef struct work {
  struct work *next;
  fake_event *event;       /* not NULL: it is come to, and nothing else is done */
  fake_function *function; /* NULL: a copy of words[2] bytes from words[1] to words[0] */
  uint32_t groups, threads;
  int64_t words[MOST_WORDS];
} work;
typedef struct {
  work *first, **last;
} fake_graph;

static allocation *allocations, *locked;
static work *first_work, **last_work = &first_work;
static long n_contexts, n_streams, n_events, n_modules, n_graphs, n_pushed, n_launches, bytes_taken;
static int lost;
static fake_graph *captured; /* what the stream is being recorded into */

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static void note(const char *what, long long a) {
  const char *file = getenv("FAKE_CUDA_LOG");
  FILE *out = file ? fopen(file, "a") : NULL;
  if (!out) return;
  fprintf(out, "%s %lld\n", what, a);
  fclose(out);
}

/* Each call says so, wants a context, and fails once the device is lost. */
#define CALL(argument)                         \
  do {                                         \
    note(__func__, (long long)(argument));     \
    if (lost) return lost;                     \
    if (!n_pushed) return INVALID_CONTEXT;     \
  } while (0)

static int inside(uint64_t at, size_t bytes) {
  for (allocation *a = allocations; a; a = a->next)
    if (at >= a->at && at + bytes <= a->at + a->bytes) return 1;
  fprintf(stderr, "fake CUDA: %zu bytes at %llx are nobody's\n", bytes, (unsigned long long)at);
  return 0;
}

static int later(work *w) {
  work ***last = captured ? &captured->last : &last_work;
  **last = w;
  *last = &w->next;
  return 0;
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *name_of(const fake_function *f) {
  Dl_info info;
  return dladdr((void *)(uintptr_t)f->run, &info) && info.dli_sname ? info.dli_sname : "?";
}

/* Up to an event, or (NULL) to the end. */
static int run_to(const fake_event *last) {
  int come = 0;
  if (captured) return CAPTURING;
  while (first_work && !come) {
    work *w = first_work;
    first_work = w->next;
    if (!first_work) last_work = &first_work;
    if (w->event) {
      w->event->at = now(), w->event->recorded--;
      come = w->event == last && !last->recorded;
      free(w);
      continue;
    }
    if (w->function) note(name_of(w->function), w->groups);
    else note("copies", w->words[2]);
    if (!w->function) {
      memcpy((void *)(uintptr_t)w->words[0], (void *)(uintptr_t)w->words[1], (size_t)w->words[2]);
      free(w);
      continue;
    }
    if (++n_launches == setting("FAKE_CUDA_LOST", -1)) lost = ILLEGAL_ADDRESS;
    if (!lost && fake_run(w->function->run, w->function->module->state, w->words, w->groups, w->threads, (int)setting("FAKE_CUDA_ORDER", 0))) {
      fprintf(stderr, "fake CUDA: threads end while others wait at a barrier\n");
      lost = ILLEGAL_ADDRESS;
    }
    free(w);
  }
  return lost;
}
static int run_all(void) { return run_to(NULL); }

static int is_locked(const void *at, size_t bytes) {
  for (allocation *a = locked; a; a = a->next)
    if ((uint64_t)(uintptr_t)at >= a->at && (uint64_t)(uintptr_t)at + bytes <= a->at + a->bytes) return 1;
  return 0;
}

/* ---- the driver API ---- */
int cuInit(unsigned flags) { return note(__func__, flags), (int)setting("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *version) { return *version = 12060, 0; }
int cuGetErrorString(int code, const char **text) {
  return *text = code == NO_MEMORY ? "out of memory" : code == NO_DEVICE ? "no CUDA-capable device is detected" : code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "an error", 0;
}
int cuDeviceGetCount(int *n) { return *n = (int)setting("FAKE_CUDA_DEVICES", 1), 0; }
int cuDeviceGet(int *device, int number) { return *device = number, 0; }
int cuDeviceGetName(char *name, int bytes, int device) { return snprintf(name, (size_t)bytes, "fake GPU %d", device), 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  long arch = setting("FAKE_CUDA_ARCH", 87);
  (void)device;
  *value = attribute == 75 ? (int)(arch / 10) : attribute == 76 ? (int)(arch % 10) : attribute == 18 ? (int)setting("FAKE_CUDA_INTEGRATED", 0) : attribute == 83;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return note(__func__, device), n_contexts++, *context = &n_contexts, 0; }
int cuDevicePrimaryCtxRelease(int device) {
  note(__func__, device);
  n_contexts--;
  long n = 0;
  for (allocation *a = allocations; a; a = a->next) n++;
  for (allocation *a = locked; a; a = a->next) n++;
  note("left: memory", n), note("left: streams", n_streams), note("left: modules", n_modules), note("left: graphs", n_graphs), note("left: events", n_events), note("left: contexts", n_contexts), note("left: pushed", n_pushed);
  return 0;
}
int cuCtxPushCurrent_v2(void *context) { return context == &n_contexts ? n_pushed++, 0 : INVALID_CONTEXT; }
int cuCtxPopCurrent_v2(void **context) { return n_pushed ? n_pushed--, *context = &n_contexts, 0 : INVALID_CONTEXT; }
int cuStreamCreate(void **stream, unsigned flags) {
  CALL(flags);
  return n_streams++, *stream = &n_streams, 0;
}
int cuStreamDestroy_v2(void *stream) { return (void)stream, n_streams--, note(__func__, 0), 0; }
int cuStreamSynchronize(void *stream) {
  CALL(stream != &n_streams);
  return stream ? run_all() : 0;
}
int cuStreamQuery(void *stream) {
  CALL(stream != &n_streams);
  if (first_work && n_launches >= setting("FAKE_CUDA_HANGS", 1 << 30)) return NOT_READY;
  return run_all();
}
int cuEventCreate(void **event, unsigned flags) {
  CALL(flags);
  fake_event *e = calloc(1, sizeof *e);
  e->no_times = flags == 2;
  return *event = e, n_events++, 0;
}
int cuEventRecord(void *event, void *stream) {
  CALL(((fake_event *)event)->no_times);
  if (stream != &n_streams) return INVALID_VALUE;
  work *w = calloc(1, sizeof *w);
  w->event = event;
  w->event->at = 0, w->event->recorded++;
  return later(w);
}
int cuEventSynchronize(void *event) {
  CALL(0);
  return ((fake_event *)event)->recorded ? run_to(event) : 0;
}
int cuEventQuery(void *event) {
  CALL(0);
  if (((fake_event *)event)->recorded && first_work && n_launches >= setting("FAKE_CUDA_HANGS", 1 << 30)) return NOT_READY;
  return ((fake_event *)event)->recorded ? run_to(event) : 0;
}
int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
  CALL(begin != end);
  const uint64_t from = ((fake_event *)begin)->at, to = ((fake_event *)end)->at;
  if (((fake_event *)begin)->no_times || ((fake_event *)end)->no_times) return INVALID_VALUE;
  if (!from || !to) return NOT_READY;
  return *milliseconds = (float)(to - from) / 1e6f, 0;
}
int cuEventDestroy_v2(void *event) { return free(event), n_events--, note(__func__, 0), 0; }
int cuStreamAttachMemAsync(void *stream, uint64_t at, size_t bytes, unsigned flags) {
  CALL(flags);
  return stream == &n_streams && inside(at, bytes) && flags == 4 ? 0 : INVALID_VALUE;
}

static void *library_of(const char *image) {
  const char *named = getenv("FAKE_CUDA_CODE");
  if (memcmp(image, "\177ELF", 4)) return named ? dlopen(named, RTLD_NOW) : NULL;
  uint64_t sections;
  uint16_t size, n;
  memcpy(&sections, image + 40, 8), memcpy(&size, image + 58, 2), memcpy(&n, image + 60, 2); /* the table of sections comes last */
  int file = memfd_create("image", 0);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  if (file < 0 || write(file, image, sections + (size_t)size * n) < 0) return NULL;
  void *library = dlopen(path, RTLD_NOW); /* the file stays open: a name that is used again would be the same library */
  if (!library) fprintf(stderr, "fake CUDA: %s\n", dlerror());
  return library;
}
int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values) {
  CALL(n);
  long refused = setting("FAKE_CUDA_REFUSES", 0);
  if (refused && n == 2 && options[0] == 5) snprintf(values[0], (size_t)(uintptr_t)values[1], "ptxas: line 7: told to refuse");
  if (refused) return (int)refused;
  fake_module *m = calloc(1, sizeof *m);
  if (m) m->library = library_of(image);
  if (m && m->library) m->state = dlsym(m->library, "smelt_host_state");
  if (!m || !m->state) return free(m), INVALID_IMAGE;
  return n_modules++, *module = m, 0;
}
int cuModuleUnload(void *module) {
  note(__func__, 0);
  free(module); /* its functions live on: nobody calls them */
  return n_modules--, 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  CALL(0);
  char full[512];
  snprintf(full, sizeof full, "%s.host", name);
  fake_module *m = module;
  fake_kernel run = (fake_kernel)(uintptr_t)dlsym(m->library, full);
  if (!run) return NOT_FOUND;
  fake_function *f = malloc(sizeof *f); /* as long as the process */
  *f = (fake_function){m, run};
  return *function = f, 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  CALL(attribute);
  return (void)function, *value = (int)setting("FAKE_CUDA_THREADS", 1024), 0;
}

/* Shared memory to be asked for at launches: as much as FAKE_CUDA_SHARED. */
int cuFuncSetAttribute(void *function, int attribute, int value) {
  CALL(value);
  return (void)function, attribute == 8 && value <= setting("FAKE_CUDA_SHARED", 99 * 1024) ? 0 : INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
  CALL(bytes);
  if (!bytes) return INVALID_VALUE;
  if (bytes_taken + (long)bytes > setting("FAKE_CUDA_MEMORY", 1L << 40)) return NO_MEMORY;
  allocation *a = calloc(1, sizeof *a);
  char *data = NULL;
  if (!a || posix_memalign((void **)&data, 256, bytes)) return free(a), NO_MEMORY;
  memset(data, 0x5A, bytes);
  *a = (allocation){allocations, (uint64_t)(uintptr_t)data, bytes};
  allocations = a;
  bytes_taken += (long)bytes;
  return *at = a->at, 0;
}
int cuMemAllocManaged(uint64_t *at, size_t bytes, unsigned flags) { return flags == 1 ? cuMemAlloc_v2(at, bytes) : INVALID_VALUE; }
int cuMemFree_v2(uint64_t at) {
  CALL(0);
  if (first_work) fprintf(stderr, "fake CUDA: memory is given back while work is under way\n");
  for (allocation **p = &allocations; *p; p = &(*p)->next) {
    allocation *a = *p;
    if (a->at != at) continue;
    *p = a->next;
    bytes_taken -= (long)a->bytes;
    return free((void *)(uintptr_t)a->at), free(a), 0;
  }
  return INVALID_VALUE;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t at) {
  CALL(attribute);
  int own = 0;
  for (allocation *a = allocations; a; a = a->next) own |= at >= a->at && at < a->at + a->bytes;
  if (attribute != 1 || !own) return INVALID_VALUE;
  return *(void **)value = setting("FAKE_CUDA_STRANGE", 0) ? (void *)&n_streams : (void *)&n_contexts, 0;
}
int cuMemGetAddressRange_v2(uint64_t *start, size_t *bytes, uint64_t at) {
  CALL(0);
  for (allocation *a = allocations; a; a = a->next)
    if (at >= a->at && at < a->at + a->bytes) return *start = a->at, *bytes = a->bytes, 0;
  return INVALID_VALUE;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
  CALL(bytes);
  size_t taken = bytes;
  for (allocation *a = locked; a; a = a->next) taken += a->bytes;
  if (!bytes || flags != 1) return INVALID_VALUE;
  if (taken > (size_t)setting("FAKE_CUDA_LOCKED", 1L << 40)) return NO_MEMORY;
  allocation *a = calloc(1, sizeof *a);
  char *data = malloc(bytes);
  if (!a || !data) return free(a), free(data), NO_MEMORY;
  *a = (allocation){locked, (uint64_t)(uintptr_t)memset(data, 0x5A, bytes), bytes};
  locked = a;
  return *at = data, 0;
}
int cuMemFreeHost(void *at) {
  note(__func__, 0);
  if (first_work && !lost) fprintf(stderr, "fake CUDA: locked memory is given back while work is under way\n");
  for (allocation **p = &locked; *p; p = &(*p)->next) {
    allocation *a = *p;
    if (a->at != (uint64_t)(uintptr_t)at) continue;
    *p = a->next;
    return free(at), free(a), 0;
  }
  return INVALID_VALUE;
}

static int copy_later(uint64_t to, uint64_t from, size_t bytes) {
  work *w = calloc(1, sizeof *w);
  if (!w) return NO_MEMORY;
  w->words[0] = (int64_t)to, w->words[1] = (int64_t)from, w->words[2] = (int64_t)bytes;
  return later(w);
}

/* What is not locked is read, or written, before the call returns, and all before it is done; what is, whenever its turn comes. */
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  CALL(bytes);
  if (stream != &n_streams || !inside(to, bytes)) return INVALID_VALUE;
  if (is_locked(from, bytes)) return copy_later(to, (uint64_t)(uintptr_t)from, bytes);
  if (run_all()) return lost;
  return memcpy((void *)(uintptr_t)to, from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  CALL(bytes);
  if (stream != &n_streams || !inside(from, bytes)) return INVALID_VALUE;
  if (is_locked(to, bytes)) return copy_later((uint64_t)(uintptr_t)to, from, bytes);
  if (run_all()) return lost;
  return memcpy(to, (void *)(uintptr_t)from, bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  CALL(bytes);
  if (stream != &n_streams || !inside(to, bytes) || !inside(from, bytes)) return INVALID_VALUE;
  return copy_later(to, from, bytes);
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared, void *stream,
                   void **parameters, void **extra) {
  CALL(x);
  if (!x || x > (unsigned long)setting("FAKE_CUDA_GROUPS", 0x7FFFFFFF) || y != 1 || z != 1 || ty != 1 || tz != 1 || shared > (unsigned long)setting("FAKE_CUDA_SHARED", 99 * 1024)) return INVALID_VALUE;
  if (stream != &n_streams || parameters || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return INVALID_VALUE;
  size_t bytes = *(size_t *)extra[3];
  if (bytes > 4096 || bytes % 8) return INVALID_VALUE;
  work *w = calloc(1, sizeof *w);
  if (!w) return NO_MEMORY;
  w->function = function, w->groups = x, w->threads = threads;
  memcpy(w->words, extra[1], bytes);
  return later(w);
}

/* ---- graphs ---- */
int cuStreamBeginCapture_v2(void *stream, int mode) {
  CALL(mode);
  if (stream != &n_streams || captured) return INVALID_VALUE;
  captured = calloc(1, sizeof *captured);
  captured->last = &captured->first;
  return 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
  CALL(0);
  if (stream != &n_streams || !captured) return INVALID_VALUE;
  return *graph = captured, captured = NULL, 0;
}
int cuGraphInstantiateWithFlags(void **list, void *graph, uint64_t flags) {
  CALL(flags);
  fake_graph *made = calloc(1, sizeof *made);
  *made = *(fake_graph *)graph; /* the graph's work is the list's from here on */
  ((fake_graph *)graph)->first = NULL;
  return n_graphs++, *list = made, 0;
}
int cuGraphLaunch(void *list, void *stream) {
  CALL(0);
  if (stream != &n_streams) return INVALID_VALUE;
  for (const work *w = ((fake_graph *)list)->first; w; w = w->next) {
    work *again = malloc(sizeof *again);
    *again = *w;
    again->next = NULL;
    later(again);
  }
  return 0;
}
static int give_back(fake_graph *g) {
  for (work *w = g->first, *next; w; w = next) next = w->next, free(w);
  return free(g), 0;
}
int cuGraphExecDestroy(void *list) { return note(__func__, 0), n_graphs--, give_back(list); }
int cuGraphDestroy(void *graph) { return note(__func__, 0), give_back(graph); }
