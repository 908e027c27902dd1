/* vulkan_pipelines.h: the modules of a unit's package in; a pipeline for each of its kernels out, made when the unit is opened.
 * What the device's driver has compiled is kept for the next process. */
#ifndef SMELT_VULKAN_PIPELINES_H
#define SMELT_VULKAN_PIPELINES_H
#include "vulkan_features.h"

/* The module for this device: without the float controls that it does not promise, and with as many bindings as there are. */
static uint32_t adapt(const vk_unit *u, const uint32_t *code, uint32_t words, uint32_t *out, uint32_t shared, uint32_t parameters) {
  enum { OP_EXTENSION = 10, OP_MODE = 16, OP_CAPABILITY = 17, OP_DECORATE = 71, KEEPS_CAPABILITY = 4466, KEEPS_MODE = 4461, BINDING = 33, HEAD = 5,
         SUBNORMALS_CAPABILITY = 4464, SUBNORMALS_MODE = 4459 };
  uint32_t n = HEAD;
  memcpy(out, code, HEAD * sizeof *out);
  for (uint32_t i = HEAD, length; i < words && (length = code[i] >> 16); i += length) {
    uint32_t op = code[i] & 0xFFFF;
    uint32_t about = op == OP_MODE ? code[i + 2] : op == OP_CAPABILITY ? code[i + 1] : 0;
    int floats = (op == OP_EXTENSION && !strcmp((const char *)(code + i + 1), "SPV_KHR_float_controls")) || about == KEEPS_CAPABILITY || about == KEEPS_MODE;
    if ((floats && !u->float_controls) || ((about == SUBNORMALS_CAPABILITY || about == SUBNORMALS_MODE) && !u->keeps_subnormals_16)) continue;
    memcpy(out + n, code + i, length * sizeof *out);
    if (op == OP_DECORATE && code[i + 2] == BINDING)
      out[n + 3] = code[i + 3] == parameters ? (parameters < shared + 1 ? parameters : shared + 1) : code[i + 3] < shared ? code[i + 3] : shared;
    n += length;
  }
  return n;
}

static int pushed(const part_row *part) { return part->n_parameters <= PUSHED_WORDS; }
static uint32_t bound(const vk_kernel *k) {
  const part_row *part = (const part_row *)k->row;
  uint32_t n = part->n_bindings < k->shared + 1 ? part->n_bindings : k->shared + 1;
  return n + !pushed(part);
}

static int32_t create_layouts(vk_unit *u, vk_kernel *k) {
  const part_row *part = (const part_row *)k->row;
  vk_set_binding bindings[MAX_BOUND + 1];
  uint32_t n = bound(k);
  for (uint32_t i = 0; i < n; i++) bindings[i] = (vk_set_binding){.binding = i, .type = VK_STORAGE_DESCRIPTOR, .count = 1, .stages = VK_STAGE_COMPUTE};
  vk_set_layout_create set = {.type = VK_SET_LAYOUT_CREATE, .n = n, .bindings = bindings};
  vk_push_range push = {VK_STAGE_COMPUTE, 0, part->n_parameters * 4};
  vk_layout_create layout = {.type = VK_PIPELINE_LAYOUT_CREATE, .n_sets = 1, .sets = &k->set_layout, .pushes = &push};
  layout.n_pushes = pushed(part) && part->n_parameters;
  int32_t code = k->set_layout ? 0 : u->vk.vkCreateDescriptorSetLayout(u->device, &set, NULL, &k->set_layout);
  return code || k->layout ? code : u->vk.vkCreatePipelineLayout(u->device, &layout, NULL, &k->layout);
}

static int32_t create_pipeline(vk_unit *u, vk_kernel *k) {
  const part_row *part = (const part_row *)k->row;
  uint32_t most = u->most_bindings - !pushed(part), lanes = part->lanes < u->most_lanes ? part->lanes : u->most_lanes;
  k->shared = part->n_bindings <= most ? part->n_bindings : most - 1;
  uint32_t *words = malloc(part->words * sizeof *words);
  if (!words) return VK_OUT_OF_HOST_MEMORY;
  uint32_t n = adapt(u, u->package + part->code, part->words, words, k->shared, part->n_bindings);
  vk_shader_create shader = {.type = VK_SHADER_CREATE, .bytes = n * sizeof *words, .code = words};
  vk_object module = 0;
  int32_t code = create_layouts(u, k);
  if (!code) code = u->vk.vkCreateShaderModule(u->device, &shader, NULL, &module);
  vk_special_entry entry = {0, 0, sizeof lanes};
  vk_special special = {1, &entry, sizeof lanes, &lanes};
  vk_pipeline_create create = {.type = VK_PIPELINE_CREATE, .layout = k->layout, .base_index = -1};
  create.stage = (vk_stage_create){.type = VK_STAGE_CREATE, .stage = VK_STAGE_COMPUTE, .module = module, .special = &special};
  create.stage.name = (const char *)u->package + part->name;
  if (!code) code = u->vk.vkCreateComputePipelines(u->device, u->cache, 1, &create, NULL, &k->pipeline);
  if (module) u->vk.vkDestroyShaderModule(u->device, module, NULL);
  free(words);
  return code;
}

/* ---- what is kept ---- */
/* Whether the driver will take it: it ignores what does not begin with a head of its own, and says nothing. */
static int is_of_device(const vk_unit *u, const void *data, size_t bytes) {
  vk_cache_head head;
  if (bytes < sizeof head) return 0;
  memcpy(&head, data, sizeof head);
  return head.bytes >= sizeof head && head.bytes <= bytes && head.version == 1 && head.vendor == u->vendor && head.device == u->device_id &&
         !memcmp(head.cache_id, u->cache_id, sizeof head.cache_id);
}

/* What compiled code depends on besides the package. */
static void describe(const vk_unit *u, char *key, size_t room) {
  char id[2 * sizeof u->cache_id + 1];
  for (size_t i = 0; i < sizeof u->cache_id; i++) snprintf(id + 2 * i, 3, "%02x", u->cache_id[i]);
  snprintf(key, room, "%s|%x|%x|%x|%s|%u|%u|%u|%x", u->name, (unsigned)u->vendor, (unsigned)u->device_id, (unsigned)u->driver_version, id,
           (unsigned)u->most_lanes, (unsigned)u->most_bindings, (unsigned)u->float_controls, (unsigned)u->features);
}

static int32_t create_cache(smelt_rt *rt, vk_unit *u, const char *key) {
  size_t bytes = 0;
  void *kept = smelt_rt_cached(rt, u->unit, key, &bytes);
  vk_cache_create create = {.type = VK_CACHE_CREATE};
  int32_t code = -1;
  if (kept && is_of_device(u, kept, bytes)) {
    create.bytes = bytes, create.data = kept;
    code = u->vk.vkCreatePipelineCache(u->device, &create, NULL, &u->cache);
  }
  if (kept && code) smelt_rt_useless(rt);
  free(kept);
  u->cache_found = !code;
  if (!code) return SMELT_OK;
  create.bytes = 0, create.data = NULL;
  code = u->vk.vkCreatePipelineCache(u->device, &create, NULL, &u->cache);
  return code ? vk_failed(rt, u, "vkCreatePipelineCache", code) : SMELT_OK;
}

static void keep_cache(smelt_rt *rt, const vk_unit *u, const char *key) {
  size_t bytes = 0;
  if (u->vk.vkGetPipelineCacheData(u->device, u->cache, &bytes, NULL) || !bytes) return;
  void *data = malloc(bytes);
  if (data && !u->vk.vkGetPipelineCacheData(u->device, u->cache, &bytes, data)) smelt_rt_cache(rt, u->unit, key, data, bytes);
  free(data);
}

static int32_t refused(smelt_rt *rt, const vk_unit *u, const vk_kernel *k, int32_t code) {
  const part_row *part = (const part_row *)k->row;
  const char *name = (const char *)u->package + part->name;
  char log[640], told[400];
  snprintf(log, sizeof log, "Vulkan device '%s', driver %x: vkCreateComputePipelines of kernel '%.200s' failed with code %d\n", u->name,
           (unsigned)u->driver_version, name, (int)code);
  smelt_rt_refused("spv", u->package + part->code, part->words * sizeof *u->package, log, told, sizeof told);
  return rt_error(rt, SMELT_DEVICE, "Vulkan device '%s' refused kernel '%.200s' with code %d%s; place it on the cpu, or compile without +vulkan", u->name,
                  name, (int)code, told);
}

static int32_t create_pipelines(smelt_rt *rt, vk_unit *u) {
  char key[512];
  describe(u, key, sizeof key);
  int32_t status = create_cache(rt, u, key);
  for (uint32_t i = 0; !status && i < u->model->n_kernels; i++) {
    if (!u->kernels[i].row) continue;
    int32_t code = create_pipeline(u, &u->kernels[i]);
    const part_row *next = NULL; /* drivers may refuse what they say they have */
    while (code && (next = next_form(u, (const part_row *)u->kernels[i].row))) {
      u->refusals[number_of(u, (const part_row *)u->kernels[i].row)] = code;
      u->kernels[i].row = (const uint32_t *)next;
      code = create_pipeline(u, &u->kernels[i]);
    }
    if (code) status = refused(rt, u, &u->kernels[i], code);
  }
  if (!status && !u->cache_found) keep_cache(rt, u, key);
  return status;
}
#endif
