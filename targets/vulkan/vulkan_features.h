/* vulkan_features.h: a device in; which features of the package's modules it has, and the request that turns them on, out. */
#ifndef SMELT_VULKAN_FEATURES_H
#define SMELT_VULKAN_FEATURES_H
#include "vulkan_unit.h"

/* The bits of a module's flags, as features.py has them. */
enum { FLOAT64 = 1, STORAGE16 = 2, STORAGE8 = 4, INT16 = 8, INT8 = 16, HALVES = 32, SUBGROUPS = 64 };

/* Each by the name that SMELT_VULKAN_WEAK takes away, and by Vulkan's. */
static const struct {
  uint32_t bit;
  const char *weak, *name;
} feature_names[] = {
    {FLOAT64, "float64", "shaderFloat64"}, {STORAGE16, "storage16", "storageBuffer16BitAccess"}, {STORAGE8, "storage8", "storageBuffer8BitAccess"},
    {INT16, "int16", "shaderInt16"},       {INT8, "int8", "shaderInt8"},                         {HALVES, "halves", "shaderFloat16"},
    {SUBGROUPS, "subgroups", "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT"},
};

static const char *const CONTROLS_EXTENSION = "VK_KHR_shader_float_controls", *const STORAGE_8_EXTENSION = "VK_KHR_8bit_storage";
static const char *const SMALL_TYPES_EXTENSION = "VK_KHR_shader_float16_int8";

/* What a device is made with. */
typedef struct {
  vk_features_2 core;
  vk_storage_16 storage16;
  vk_storage_8 storage8;
  vk_small_types small;
  const char *extensions[3];
  uint32_t n_extensions;
} vk_asked;

/* Whether f16 is converted as NumPy does it; SMELT_VULKAN_TRUST=halves takes that for granted. */
static int promises_halves(const vk_unit *u, const vk_float_controls *f) {
  enum { NONE = 2 };
  const char *trust = getenv("SMELT_VULKAN_TRUST");
  if (!u->float_controls || !f->keeps_zero_inf_nan_16 || !f->rounds_to_even_16) return 0;
  if (f->independence[0] == NONE || f->independence[1] == NONE) return 0;
  return u->keeps_subnormals_16 || (trust && strstr(trust, "halves"));
}

/* Whether invocations of compute shaders reduce among those that run together, which are several. */
static int has_subgroups(const vk_subgroups *s) {
  const uint32_t wanted = VK_SUBGROUP_BASIC | VK_SUBGROUP_ARITHMETIC;
  return s->size > 1 && (s->stages & VK_STAGE_COMPUTE) && (s->operations & wanted) == wanted;
}

/* The bits of what the device has; the request is for these alone. f: zeros where it has no float controls. */
static uint32_t ask_features(vk_unit *u, const vk_float_controls *f, const vk_subgroups *s, vk_asked *a) {
  memset(a, 0, sizeof *a);
  int has_bytes = has_extension(u, STORAGE_8_EXTENSION), has_small = has_extension(u, SMALL_TYPES_EXTENSION);
  a->core.type = VK_FEATURES_2, a->storage16.type = VK_STORAGE_16, a->storage8.type = VK_STORAGE_8, a->small.type = VK_SMALL_TYPES;
  a->core.next = &a->storage16;
  void **next = &a->storage16.next;
  if (has_bytes) *next = &a->storage8, next = &a->storage8.next;
  if (has_small) *next = &a->small;
  u->vk.vkGetPhysicalDeviceFeatures2(u->physical, &a->core);
  const uint32_t has[] = {a->core.features.float64, a->storage16.buffers, a->storage8.buffers, a->core.features.int16, a->small.int8,
                          a->small.float16 && promises_halves(u, f), (uint32_t)has_subgroups(s)};
  uint32_t found = 0;
  for (size_t i = 0; i < sizeof has / sizeof *has; i++)
    if (has[i] && weaker(feature_names[i].weak, 1)) found |= feature_names[i].bit;
  memset(&a->core.features, 0, sizeof a->core.features);
  a->core.features.float64 = (found & FLOAT64) != 0, a->core.features.int16 = (found & INT16) != 0;
  a->storage16.buffers = (found & STORAGE16) != 0, a->storage16.uniforms = a->storage16.pushed = a->storage16.stages = 0;
  a->storage8.buffers = (found & STORAGE8) != 0, a->storage8.uniforms = a->storage8.pushed = 0;
  a->small.int8 = (found & INT8) != 0, a->small.float16 = (found & HALVES) != 0;
  if (f->type) a->extensions[a->n_extensions++] = CONTROLS_EXTENSION;
  if (has_bytes) a->extensions[a->n_extensions++] = STORAGE_8_EXTENSION;
  if (has_small) a->extensions[a->n_extensions++] = SMALL_TYPES_EXTENSION;
  return found;
}

static const part_row *row_at(const vk_unit *u, uint32_t i) { return (const part_row *)(u->package + 2) + i; }

static int32_t lacking(smelt_rt *rt, const vk_unit *u, const part_row *part) {
  const char *kernel = (const char *)u->package + part->name, *feature = "";
  for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; i++)
    if (part->flags & feature_names[i].bit & ~u->features) feature = feature_names[i].name;
  return rt_error(rt, SMELT_UNSUPPORTED,
                  "Vulkan device '%s' lacks the feature %s, which kernel '%.256s' needs; compute in float32, or place it on the cpu", u->name, feature,
                  kernel);
}

static int has_features(const vk_unit *u, const part_row *part) { return !(part->flags & ~(ELASTIC | u->features)); }

/* The next form of the same kernel whose features the device has; NULL: none. */
static const part_row *next_form(const vk_unit *u, const part_row *part) {
  const char *text = (const char *)u->package;
  for (const part_row *p = part + 1; p < row_at(u, u->package[1]) && !strcmp(text + p->name, text + part->name); p++)
    if (has_features(u, p)) return p;
  return NULL;
}

/* Of the forms of each kernel the first whose features the device has. */
static int32_t choose_forms(smelt_rt *rt, vk_unit *u) {
  uint32_t n = u->package[1], next = 0;
  for (uint32_t i = 0; i < u->model->n_kernels; i++) {
    if ((uint32_t)u->model->kernels[i].unit != u->unit) continue;
    const part_row *last = NULL;
    for (uint32_t tries = 0; tries < n && !u->kernels[i].row; tries++, next = (next + 1) % n) {
      const part_row *part = row_at(u, next);
      if (strcmp((const char *)u->package + part->name, u->model->kernels[i].name)) continue;
      if (!last) u->kernels[i].first = (const uint32_t *)part;
      last = part;
      if (has_features(u, part)) u->kernels[i].row = (const uint32_t *)part;
    }
    if (!last) return rt_error(rt, SMELT_INTERNAL, "model '%s' has no module for kernel '%s'; compile it again", u->model->name, u->model->kernels[i].name);
    if (!u->kernels[i].row) return lacking(rt, u, last);
    if (last->lanes > u->most_lanes && !(last->flags & ELASTIC))
      return rt_error(rt, SMELT_UNSUPPORTED, "Vulkan device '%s' has groups of %u invocations, kernel '%.256s' needs %u; place it on the cpu", u->name,
                      (unsigned)u->most_lanes, (const char *)u->package + last->name, (unsigned)last->lanes);
  }
  return SMELT_OK;
}

static uint32_t number_of(const vk_unit *u, const part_row *part) { return (uint32_t)(part - row_at(u, 0)); }

/* The names of features, with a + between them. */
static const char *feature_text(uint32_t flags, char *out, size_t room) {
  size_t n = 0;
  *out = 0;
  for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; i++)
    if (flags & feature_names[i].bit && n < room) n += (size_t)snprintf(out + n, room - n, "%s%s", n ? "+" : "", feature_names[i].weak);
  return out;
}

/* The form of a kernel, and what keeps it from each better one (driver.h). */
static const char *form_of(void *state, int32_t id, const char **why) {
  vk_unit *u = state;
  const part_row *taken = (const part_row *)u->kernels[id].row, *first = (const part_row *)u->kernels[id].first;
  const char *text = (const char *)u->package;
  char wanted[128], lacking[128];
  size_t n = 0;
  if (!taken) return NULL;
  const part_row *second = number_of(u, first) + 1 < u->package[1] ? first + 1 : NULL;
  if (!second || strcmp(text + first->name, text + second->name)) return NULL;
  *u->lesser = 0;
  for (const part_row *p = first; p < taken && n < sizeof u->lesser; p++) {
    int32_t code = u->refusals[number_of(u, p)];
    const char *form = feature_text(p->flags, wanted, sizeof wanted), *less = feature_text(p->flags & ~u->features, lacking, sizeof lacking);
    n += code ? (size_t)snprintf(u->lesser + n, sizeof u->lesser - n, "%sthe driver refused %s with code %d", n ? "; " : "", form, (int)code)
              : (size_t)snprintf(u->lesser + n, sizeof u->lesser - n, "%sfor %s the device lacks %s", n ? "; " : "", form, less);
  }
  *why = u->lesser;
  return feature_text(taken->flags, u->form, sizeof u->form);
}

static int32_t create_device(smelt_rt *rt, vk_unit *u) {
  vk_properties_2 properties = {.type = VK_PROPERTIES_2};
  vk_float_controls floats = {.type = has_extension(u, CONTROLS_EXTENSION) && weaker("controls", 1) ? VK_FLOAT_CONTROLS_PROPERTIES : 0};
  vk_subgroups subgroups = {.type = VK_SUBGROUP_PROPERTIES};
  properties.next = &subgroups;
  if (floats.type) subgroups.next = &floats;
  u->vk.vkGetPhysicalDeviceProperties2(u->physical, &properties);
  const vk_limits *limits = &properties.properties.limits;
  u->vendor = properties.properties.vendor, u->device_id = properties.properties.device, u->driver_version = properties.properties.driver;
  memcpy(u->cache_id, properties.properties.cache_id, sizeof u->cache_id);
  u->float_controls = floats.keeps_zero_inf_nan_32, u->keeps_subnormals_16 = floats.keeps_subnormals_16;
  u->most_bindings = limits->max_stage_buffers < limits->max_set_buffers ? limits->max_stage_buffers : limits->max_set_buffers;
  u->most_bindings = weaker("bindings", u->most_bindings < MAX_BOUND ? u->most_bindings : MAX_BOUND);
  u->most_range = weaker("range", limits->max_storage_range);
  u->alignment = limits->storage_alignment ? limits->storage_alignment : 1;
  u->most_lanes = weaker("lanes", limits->max_invocations < limits->max_group_size[0] ? limits->max_invocations : limits->max_group_size[0]);
  u->most_rounds = strncmp(u->name, "llvmpipe", 8) ? UINT64_MAX : LLVMPIPE_ROUNDS;
  for (int i = 0; i < 3; i++) u->most_groups[i] = weaker("groups", limits->max_groups[i]);
  choose_memory(u, &properties.properties);
  u->family = compute_family(u, u->physical);
  u->timestamp_bits = timestamp_bits(u);
  u->timestamp_ns = u->timestamp_bits ? limits->timestamp_ns : 0;
  vk_asked asked;
  u->features = ask_features(u, &floats, &subgroups, &asked);
  int32_t status = choose_forms(rt, u);
  if (status) return status;
  float priority = 1;
  vk_queue_create queue = {.type = VK_QUEUE_CREATE, .family = u->family, .count = 1, .priorities = &priority};
  vk_device_create create = {.type = VK_DEVICE_CREATE, .n_queues = 1, .queues = &queue, .extensions = asked.extensions};
  create.n_extensions = asked.n_extensions, create.features = &asked.core.features, create.next = asked.core.next;
  int32_t code = u->vk.vkCreateDevice(u->physical, &create, NULL, &u->device);
  if (code) return vk_failed(rt, u, "vkCreateDevice", code);
  u->vk.vkGetDeviceQueue(u->device, u->family, 0, &u->queue);
  return SMELT_OK;
}
#endif
