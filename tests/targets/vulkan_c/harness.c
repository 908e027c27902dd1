/* harness.c: vulkan_driver.c as functions for ctypes: a unit with kernels of given names opens, its memories and launches follow. */
#include "driver.h"
#include "rt.h"

extern const smelt_driver smelt_driver_vulkan;

int32_t rt_error(smelt_rt *rt, int32_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(rt->error, sizeof rt->error, format, args);
  va_end(args);
  return status;
}

typedef struct {
  smelt_rt rt;
  smelt_model_desc model;
  smelt_unit_desc unit;
  smelt_kernel_desc *kernels;
  void *state;
} harness;

harness *h_open(const void *code, uint64_t bytes, const char *const *names, const int32_t *n_buffers, uint32_t n, int32_t *status) {
  harness *h = calloc(1, sizeof *h);
  h->kernels = calloc(n, sizeof *h->kernels);
  for (uint32_t i = 0; i < n; i++) h->kernels[i] = (smelt_kernel_desc){.name = names[i], .unit = 1, .n_buffers = n_buffers[i], .lane_count = 1};
  h->unit = (smelt_unit_desc){&smelt_driver_vulkan, code, bytes, 0, 0};
  h->model = (smelt_model_desc){.n_kernels = n, .n_units = 1, .name = "test", .kernels = h->kernels, .units = &h->unit};
  h->rt.model = &h->model;
  h->rt.session = calloc(1, sizeof *h->rt.session);
  *status = smelt_driver_vulkan.open(&h->rt, 1, &h->state);
  return h;
}
const char *h_error(const harness *h) { return h->rt.error; }
const char *h_device(const harness *h) { return smelt_driver_vulkan.device(h->state); }
uint64_t h_cache_hits(const harness *h) { return h->rt.session->traffic.cache_hits; }
const char *h_form(const harness *h, int32_t id, const char **why) { return smelt_driver_vulkan.form(h->state, id, why); }
void h_close(harness *h) {
  if (h->state) smelt_driver_vulkan.close(h->state);
  free(h->rt.session);
  free(h->kernels);
  free(h);
}
void *h_allocate(harness *h, uint64_t bytes, const void *contents, int32_t *code) {
  return smelt_driver_vulkan.allocate(h->state, bytes, contents, code);
}
void h_release(harness *h, void *memory) { smelt_driver_vulkan.release(h->state, memory); }
int32_t h_upload(harness *h, void *memory, uint64_t offset, const void *host, uint64_t bytes, int wait) {
  return smelt_driver_vulkan.upload(h->state, memory, offset, host, bytes, wait);
}
int32_t h_download(harness *h, void *memory, uint64_t offset, void *host, uint64_t bytes, int wait) {
  return smelt_driver_vulkan.download(h->state, memory, offset, host, bytes, wait);
}
int32_t h_copy(harness *h, void *to, uint64_t to_offset, void *from, uint64_t from_offset, uint64_t bytes) {
  return smelt_driver_vulkan.copy(h->state, to, to_offset, from, from_offset, bytes);
}
void *h_map(harness *h, void *memory, uint64_t bytes, int writes, int32_t *code) {
  return smelt_driver_vulkan.map(h->state, memory, bytes, writes, code);
}
int32_t h_unmap(harness *h, void *memory, void *mapped) { return smelt_driver_vulkan.unmap(h->state, memory, mapped); }
int32_t h_launch(harness *h, int32_t id, void *const *memories, const uint64_t *offsets, const int64_t *dims, int64_t groups) {
  smelt_place places[1024];
  for (int32_t i = 0; i < h->kernels[id].n_buffers; i++) places[i] = (smelt_place){memories[i], offsets[i]};
  return smelt_driver_vulkan.launch(h->state, id, places, dims, groups);
}
int32_t h_flush(harness *h) { return smelt_driver_vulkan.flush(h->state); }
int32_t h_finish(harness *h) { return smelt_driver_vulkan.finish(h->state); }
int32_t h_mark(harness *h, uint64_t number) { return smelt_driver_vulkan.mark(h->state, number); }
int32_t h_reach(harness *h, uint64_t number) { return smelt_driver_vulkan.reach(h->state, number); }

/* n launches of one kernel with as many buffers each, one after the other; id -1: copies of `groups` bytes. */
void *h_record(harness *h, int32_t id, uint32_t n, void *const *memories, const int64_t *dims, int64_t groups) {
  smelt_command commands[64];
  smelt_place places[256];
  const int32_t each = id < 0 ? 2 : h->kernels[id].n_buffers;
  for (uint32_t i = 0; i < n; i++) {
    for (int32_t k = 0; k < each; k++) places[i * (uint32_t)each + (uint32_t)k] = (smelt_place){memories[i * (uint32_t)each + (uint32_t)k], 0};
    commands[i] = (smelt_command){.kernel = id, .groups = groups, .buffers = &places[i * (uint32_t)each], .dims = dims};
  }
  return smelt_driver_vulkan.record(h->state, commands, n);
}
int32_t h_submit(harness *h, void *list) { return smelt_driver_vulkan.submit(h->state, list); }
void h_forget(harness *h, void *list) { smelt_driver_vulkan.forget(h->state, list); }
