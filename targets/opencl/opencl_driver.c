/* opencl_driver.c: the driver (driver.h) for OpenCL devices; it opens the vendor's library by dlopen.
 * A unit's code is OpenCL C. */
#include "opencl_unit.h"

/* ---- opening and closing ---- */
/* The process in which a session of this model has opened a device; 0: none. */
static int32_t opened_in;

static int32_t open_device(smelt_rt *rt, cl_unit *u) {
  int32_t (*const steps[])(smelt_rt *, cl_unit *) = {load_driver, choose_device, create_context, build_program, create_kernels, look_for_recording};
  int32_t status = SMELT_OK;
  for (size_t i = 0; i < sizeof steps / sizeof *steps && !status; i++) status = steps[i](rt, u);
  if (u->context) __atomic_store_n(&opened_in, sm_getpid(), __ATOMIC_RELEASE);
  return status;
}

/* Where threads open their first devices at once, drivers fall over their own beginnings (PoCL 3.1 ends the process), so these take turns, also
 * with other models' libraries: all hold one file of this process, which no other process holds. */
static int32_t open_in_turn(smelt_rt *rt, cl_unit *u) {
  int fd = sm_open("/proc/self/stat");
  if (fd >= 0) sm_hold(fd);
  int32_t status = open_device(rt, u);
  if (fd >= 0) sm_let_go(fd), sm_close(fd);
  return status;
}

static int32_t open_unit(smelt_rt *rt, uint32_t unit, void **state) {
  int32_t before = __atomic_load_n(&opened_in, __ATOMIC_ACQUIRE);
  if (before && before != sm_getpid())
    return rt_error(rt, SMELT_DEVICE, "OpenCL: this process is a fork of one that has used OpenCL, which drivers do not survive; start it anew (in Python "
                                      "by multiprocessing's 'spawn'), or compile with --fallback, so that the CPU runs here");
  cl_unit *u = calloc(1, sizeof *u + rt->model->n_kernels * sizeof *u->kernels);
  if (!u) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  *state = u;
  u->model = rt->model;
  u->desc = &rt->model->units[unit - 1];
  u->unit = unit;
  u->kernels = (cl_kernel *)(u + 1);
  return before ? open_device(rt, u) : open_in_turn(rt, u);
}

/* Where the event of what is asked for now goes, once that of what was asked for before is gone. */
static void *latest(cl_unit *u) {
  if (u->last) u->cl.clReleaseEvent(u->last);
  u->last = NULL;
  return &u->last;
}

static void drop_timed(cl_unit *u) {
  for (uint32_t i = 0; i < u->n_timed && i < CL_TIMED; i++) u->cl.clReleaseEvent(u->timed[i]);
  u->n_timed = 0;
}

static void close_unit(void *state) {
  cl_unit *u = state;
  if (u->hung) return; /* the device may be using all of it */
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    if (u->kernels[i].handle) u->cl.clReleaseKernel(u->kernels[i].handle);
    free(u->kernels[i].args);
  }
  if (u->program) u->cl.clReleaseProgram(u->program);
  drop_timed(u);
  latest(u);
  for (uint32_t i = 0; i < CL_MARKS; i++)
    if (u->marks[i]) u->cl.clReleaseEvent(u->marks[i]);
  if (u->queue) u->cl.clReleaseCommandQueue(u->queue);
  if (u->plain) u->cl.clReleaseCommandQueue(u->plain);
  if (u->context) u->cl.clReleaseContext(u->context);
  free(u->reads);
  free(u->words);
  free(u);
}

static const char *device_name(const void *state) { return ((const cl_unit *)state)->name; }

/* ---- memory: a cl_mem ---- */
/* Where the host sees what is in a unit's memory while the unit does not work; NULL: by commands alone. */
static char *seen(const cl_unit *u, cl_handle memory) {
  uint64_t flags = 0;
  void *at = NULL;
  if (!u->sharing.allocate || u->cl.clGetMemObjectInfo(memory, CL_MEM_FLAGS, sizeof flags, &flags, NULL) || flags & CL_MEM_READ_ONLY) return NULL;
  return u->cl.clGetMemObjectInfo(memory, CL_MEM_HOST_PTR, sizeof at, &at, NULL) ? NULL : at;
}

static void *allocate_seen(cl_unit *u, size_t bytes, int32_t *code) {
  void *at = u->sharing.allocate(u->context, CL_MEM_READ_WRITE | CL_MEM_FINE_GRAIN, bytes, 0);
  void *made = at ? u->cl.clCreateBuffer(u->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, at, code) : NULL;
  if (at && !made) u->sharing.free(u->context, at);
  return made;
}

static void *allocate(void *state, size_t bytes, const void *contents, int32_t *code) {
  cl_unit *u = state;
  void *shown = !contents && u->sharing.allocate ? allocate_seen(u, bytes, code) : NULL;
  if (shown) return shown;
  uint64_t flags = contents ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : u->unified ? CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR : CL_MEM_READ_WRITE;
  void *used = contents && u->unified
                 ? u->cl.clCreateBuffer(u->context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, bytes, (void *)(uintptr_t)contents, code)
                 : NULL;
  return used ? used : u->cl.clCreateBuffer(u->context, flags, bytes, (void *)(uintptr_t)contents, code);
}

/* ---- waiting ---- */
/* 1: it has not ended; else 0 or its error. */
static int32_t ask(void *state) {
  void *const *at = state;
  const cl_unit *u = at[0];
  int32_t status = 0, code = u->cl.clGetEventInfo(at[1], CL_EVENT_STATUS, sizeof status, &status, NULL);
  return code < 0 ? code : status > 0 ? 1 : status;
}

/* A word that a callback sets; it is gone when both who waits and the callback have left it. */
typedef struct {
  _Atomic uint32_t told, holders;
} cl_bell;

static void leave_bell(cl_bell *bell) {
  if (atomic_fetch_sub(&bell->holders, 1) == 1) free(bell);
}

static void ring(cl_handle event, int32_t status, void *context) {
  cl_bell *bell = context;
  (void)event, (void)status;
  atomic_store(&bell->told, 1);
  sm_futex_wake(&bell->told, 1);
  leave_bell(bell);
}

/* Told by the event, and asleep until then. */
static int32_t sleep_for(cl_unit *u, cl_handle event) {
  void *asked[] = {u, event};
  cl_bell *bell = malloc(sizeof *bell);
  if (!bell) return smelt_rt_poll(ask, asked);
  atomic_init(&bell->told, 0), atomic_init(&bell->holders, 2);
  if (u->cl.clSetEventCallback(event, 0 /* CL_COMPLETE */, ring, bell)) return free(bell), smelt_rt_poll(ask, asked);
  int32_t code = smelt_rt_sleep(ask, asked, &bell->told);
  leave_bell(bell);
  return code;
}

/* Until the event has come, but no longer than is allowed. A processor's driver wants the processor that asking takes, so work as long
 * as the last one that took it longer than to wake a thread is slept for. */
static int32_t await(cl_unit *u, cl_handle event) {
  void *asked[] = {u, event};
  int32_t code = u->cl.clFlush(u->queue);
  uint64_t begin = sm_now();
  if (!code) code = u->processor && u->waited > CL_SHORT ? sleep_for(u, event) : smelt_rt_poll(ask, asked);
  u->waited = sm_now() - begin;
  if (code == SMELT_HANGS) u->n_reads = 0, u->hung = 1;
  return code;
}

/* Until everything that was asked for has ended. */
static int32_t wait_for_all(cl_unit *u) {
  if (u->hung) return SMELT_HANGS;
  if (!u->queue || !u->busy) return 0;
  u->finishes++;
  int32_t code = u->last ? 0 : u->cl.clEnqueueMarkerWithWaitList(u->queue, 0, NULL, &u->last);
  if (!code) code = await(u, u->last);
  if (code == SMELT_HANGS) return code;
  latest(u);
  u->busy = 0;
  return code;
}

static int32_t read_now(cl_unit *u, const cl_read *r, int wait) {
  latest(u);
  return u->cl.clEnqueueReadBuffer(u->queue, r->memory, (uint32_t)wait, r->offset, r->bytes, r->host, 0, NULL, NULL);
}

/* Once nothing works on that memory. */
static int32_t take(cl_unit *u, const cl_read *r) {
  const char *at = seen(u, r->memory);
  return at ? memcpy(r->host, at + r->offset, r->bytes), 0 : read_now(u, r, 1);
}

/* Before anything that may change what is to be read. */
static int32_t settle_reads(cl_unit *u) {
  int32_t code = u->hung ? SMELT_HANGS : 0;
  for (uint32_t i = 0; i < u->n_reads && !code; i++) code = read_now(u, &u->reads[i], 0);
  u->n_reads = 0;
  u->busy = 1;
  latest(u);
  return code;
}

static size_t spaced(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The reads that were asked for, behind the work, so that one wait is for both: to the unit's own memory, since a device that does not
 * end must not write to a caller's. 0 in *lands: they are too large for that. */
static int32_t land(cl_unit *u, int *lands) {
  size_t all = 0, at = 0;
  int32_t code = 0;
  *lands = 0;
  if (u->sharing.allocate) return 0;
  for (uint32_t i = 0; i < u->n_reads && all <= CL_LANDING; i++) all += u->reads[i].bytes < CL_LANDING ? spaced(u->reads[i].bytes) : CL_LANDING + 1;
  *lands = u->n_reads && all <= CL_LANDING && !u->hung;
  for (uint32_t i = 0; *lands && i < u->n_reads && !code; at += spaced(u->reads[i++].bytes)) {
    const cl_read r = {u->reads[i].memory, u->reads[i].offset, u->reads[i].bytes, u->landing + at};
    u->busy = 1;
    code = read_now(u, &r, 0);
  }
  return code;
}

/* Wait, and give the reads that were asked for. */
static int32_t finish(void *state) {
  cl_unit *u = state;
  int lands = 0;
  int32_t code = land(u, &lands), waited = wait_for_all(u), n = (int32_t)u->n_reads;
  size_t at = 0;
  if (!code) code = waited;
  for (int32_t i = 0; i < n && !code; i++) {
    if (lands) memcpy(u->reads[i].host, u->landing + at, u->reads[i].bytes), at += spaced(u->reads[i].bytes);
    else code = take(u, &u->reads[i]);
  }
  u->n_reads = 0;
  return code;
}

/* ---- points: events of markers ---- */
static int32_t mark(void *state, uint64_t number) {
  cl_unit *u = state;
  cl_handle *place = &u->marks[number % CL_MARKS];
  if (u->hung) return SMELT_HANGS;
  if (*place) u->cl.clReleaseEvent(*place);
  *place = NULL;
  latest(u);
  u->marked = number;
  u->busy = 1;
  return u->cl.clEnqueueMarkerWithWaitList(u->queue, 0, NULL, place);
}

static int32_t reach(void *state, uint64_t number) {
  cl_unit *u = state;
  if (u->hung) return SMELT_HANGS;
  if (u->marked >= CL_MARKS && number <= u->marked - CL_MARKS) number = u->marked - CL_MARKS + 1;
  cl_handle event = u->marks[number % CL_MARKS];
  return event ? await(u, event) : finish(u); /* the marker was refused */
}

/* ---- transfers ---- */
/* Queued commands keep it alive until they end. */
static void release(void *state, void *memory) {
  cl_unit *u = state;
  u->memory_epoch++;
  char *at = seen(u, memory);
  if (settle_reads(u) || (at && wait_for_all(u))) return;
  u->cl.clReleaseMemObject(memory);
  if (at) u->sharing.free(u->context, at);
}

static int32_t upload(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait) {
  cl_unit *u = state;
  char *at = u->busy || u->n_reads ? NULL : seen(u, memory);
  if (at) return memcpy(at + offset, host, bytes), 0;
  int32_t code = settle_reads(u);
  if (!code && wait) code = wait_for_all(u);
  return code ? code : u->cl.clEnqueueWriteBuffer(u->queue, memory, (uint32_t)wait, offset, bytes, host, 0, NULL, NULL);
}

static int32_t download(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait) {
  cl_unit *u = state;
  const cl_read r = {memory, offset, bytes, host};
  if (u->hung) return SMELT_HANGS;
  if (wait == SMELT_NOW) {
    int32_t code = finish(u);
    return code ? code : take(u, &r);
  }
  if (wait == SMELT_SOON) return u->busy = 1, read_now(u, &r, 0);
  if (u->n_reads == u->room_reads) {
    uint32_t room = u->room_reads ? 2 * u->room_reads : 16;
    cl_read *more = realloc(u->reads, room * sizeof *more);
    if (!more) return u->busy = 1, read_now(u, &r, 0);
    u->reads = more, u->room_reads = room;
  }
  u->reads[u->n_reads++] = r;
  return 0;
}

static int32_t copy(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes) {
  cl_unit *u = state;
  int32_t code = settle_reads(u);
  return code ? code : u->cl.clEnqueueCopyBuffer(u->queue, from, to, from_offset, to_offset, bytes, 0, NULL, NULL);
}

static void *map(void *state, void *memory, size_t bytes, int writes, int32_t *code) {
  cl_unit *u = state;
  uint64_t flags = writes ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ;
  if ((*code = finish(u))) return NULL;
  char *at = seen(u, memory);
  return at ? at : u->cl.clEnqueueMapBuffer(u->queue, memory, 1, flags, 0, bytes, 0, NULL, NULL, code);
}

static int32_t unmap(void *state, void *memory, void *mapped) {
  cl_unit *u = state;
  int32_t code = settle_reads(u);
  return code || seen(u, memory) ? code : u->cl.clEnqueueUnmapMemObject(u->queue, memory, mapped, 0, NULL, NULL);
}

static void *known(void *state, void *memory, DLDevice *device) {
  (void)state;
  *device = (DLDevice){4 /* kDLOpenCL */, 0};
  return memory;
}

static void *adopt(void *state, DLDevice device, void *data, size_t bytes, const char **why) {
  (void)state, (void)device, (void)data, (void)bytes;
  return *why = "each session has an OpenCL context of its own, and memory belongs to one", NULL;
}

/* A processor's driver hands a launch to threads, and is asked to keep few of them busy; another device has many more that would rest. */
static int32_t chains(const void *state) {
  const cl_unit *u = state;
  return u->alone ? 0 : u->processor ? 8 : 1;
}

static int32_t shares(const void *state) { return ((const cl_unit *)state)->unified ? SMELT_SHARES_APART : SMELT_SHARES_NOT; }

/* ---- work ---- */
/* An OpenCL kernel's parameters, in order: for each buffer `__global uchar *base`, then a struct of `long`: for each buffer its offset, for
 * each dim its size. What is as it was is not set again. A kernel is launched over one dimension of groups * items work-items, `lanes` in
 * a group. */
static int32_t set_all(cl_unit *u, cl_kernel *k, const smelt_kernel_desc *desc, const smelt_place *buffers, const int64_t *dims) {
  int known = k->args && k->epoch == u->memory_epoch;
  uint32_t n = (uint32_t)desc->n_buffers, words = n + (uint32_t)desc->n_dims;
  int32_t code = 0;
  for (uint32_t i = 0; i < n && !code; i++) {
    uint64_t word = (uint64_t)(uintptr_t)buffers[i].memory;
    u->words[i] = (int64_t)buffers[i].offset;
    if (known && k->args[words + i] == word) continue;
    if (k->args) k->args[words + i] = word;
    code = u->cl.clSetKernelArg(k->handle, i, sizeof(cl_handle), &buffers[i].memory);
  }
  if (desc->n_dims) memcpy(u->words + n, dims, (size_t)desc->n_dims * sizeof *dims);
  if (!code && !(known && memcmp(k->args, u->words, words * sizeof *u->words) == 0))
    code = u->cl.clSetKernelArg(k->handle, n, words * sizeof *u->words, u->words);
  if (k->args) memcpy(k->args, u->words, words * sizeof *u->words);
  k->epoch = code ? 0 : u->memory_epoch;
  return code;
}

static int32_t launch(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups) {
  cl_unit *u = state;
  size_t lanes = u->kernels[id].lanes, all = (size_t)groups * u->kernels[id].items;
  int32_t code = settle_reads(u);
  if (!code) code = set_all(u, &u->kernels[id], &u->model->kernels[id], buffers, dims);
  cl_handle event = NULL;
  int timed = u->plain && u->n_timed < CL_TIMED;
  if (!code) code = u->cl.clEnqueueNDRangeKernel(u->queue, u->kernels[id].handle, 1, NULL, &all, &lanes, 0, NULL, timed ? (void *)&event : latest(u));
  if (!code && timed) u->timed[u->n_timed] = event;
  if (!code && u->plain) u->n_timed++;
  return code;
}

/* ---- the device's times: only a queue that was made for it takes them ---- */
static int32_t take_times(void *state, int on) {
  cl_unit *u = state;
  int32_t code = finish(u);
  if (code || on == (u->plain != NULL)) return code;
  drop_timed(u);
  if (!on) {
    u->cl.clReleaseCommandQueue(u->queue);
    u->queue = u->plain, u->plain = NULL;
    return 0;
  }
  cl_handle timing = u->cl.clCreateCommandQueue(u->context, u->device, CL_QUEUE_PROFILING, &code);
  if (timing) u->plain = u->queue, u->queue = timing;
  return timing ? 0 : code ? code : -1;
}

static int64_t elapsed(void *state) {
  cl_unit *u = state;
  int64_t total = u->n_timed && u->n_timed <= CL_TIMED ? 0 : -1;
  for (uint32_t i = 0; i < u->n_timed && total >= 0; i++) {
    uint64_t begin = 0, end = 0;
    int32_t code = u->cl.clGetEventProfilingInfo(u->timed[i], CL_PROFILING_START, sizeof begin, &begin, NULL);
    if (!code) code = u->cl.clGetEventProfilingInfo(u->timed[i], CL_PROFILING_END, sizeof end, &end, NULL);
    total = code || end < begin ? -1 : total + (int64_t)(end - begin);
  }
  drop_timed(u);
  return total;
}

static int32_t flush(void *state) {
  cl_unit *u = state;
  return u->hung ? SMELT_HANGS : u->cl.clFlush(u->queue);
}

/* ---- lists: command buffers of launches; what the versions of the extension have copies in differs, so they have none. A launch alone
 * is a kernel that has its arguments ---- */
static void forget(void *state, void *list) {
  cl_unit *u = state;
  cl_list *l = list;
  if (u->hung) return;
  if (l->buffer) u->recording.clReleaseCommandBufferKHR(l->buffer);
  for (uint32_t i = 0; i < l->n; i++) u->cl.clReleaseKernel(l->kernels[i]);
  free(l);
}

static int32_t append(cl_unit *u, cl_list *list, const smelt_command *c) {
  const smelt_kernel_desc *desc = &u->model->kernels[c->kernel];
  int32_t code = 0;
  cl_kernel own = {.handle = u->cl.clCreateKernel(u->program, desc->name, &code)};
  if (!own.handle) return code;
  list->kernels[list->n++] = own.handle;
  list->lanes = u->kernels[c->kernel].lanes, list->all = (size_t)c->groups * u->kernels[c->kernel].items;
  code = set_all(u, &own, desc, c->buffers, c->dims);
  if (code || !list->buffer) return code;
  return u->recording.clCommandNDRangeKernelKHR(list->buffer, NULL, NULL, own.handle, 1, NULL, &list->all, &list->lanes, 0, NULL, NULL, NULL);
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
  if (n > 1 && !(list->buffer = u->recording.clCreateCommandBufferKHR(1, &u->queue, u->simultaneous ? flags : NULL, &code))) return free(list), NULL;
  for (uint32_t i = 0; i < n && !code; i++) code = append(u, list, &commands[i]);
  if (!code && list->buffer) code = u->recording.clFinalizeCommandBufferKHR(list->buffer);
  if (code) forget(u, list), list = NULL;
  return list;
}

static int32_t submit(void *state, void *list) {
  cl_unit *u = state;
  cl_list *l = list;
  int32_t code = settle_reads(u);
  if (!code && !l->buffer) code = u->cl.clEnqueueNDRangeKernel(u->queue, l->kernels[0], 1, NULL, &l->all, &l->lanes, 0, NULL, latest(u));
  if (!l->buffer) return code ? code : u->cl.clFlush(u->queue);
  if (!code) code = l->submitted > u->finishes && !u->simultaneous ? finish(u) : 0;
  l->submitted = u->finishes + 1;
  if (!code) code = u->recording.clEnqueueCommandBufferKHR(0, NULL, l->buffer, 0, NULL, latest(u));
  return code ? code : u->cl.clFlush(u->queue);
}

const smelt_driver smelt_driver_opencl = {
    .name = "OpenCL", .told = cl_told, .open = open_unit, .close = close_unit, .device = device_name, .allocate = allocate, .release = release,
    .upload = upload, .download = download, .copy = copy, .map = map, .unmap = unmap, .shares = shares, .chains = chains, .launch = launch, .finish = finish,
    .flush = flush, .record = record, .submit = submit, .forget = forget, .clock = take_times, .elapsed = elapsed, .mark = mark, .reach = reach,
    .known = known, .adopt = adopt,
};
