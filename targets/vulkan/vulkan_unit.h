/* vulkan_unit.h: a unit of Vulkan, and what its opening begins with: the loader, a device, its memory types, the package. */
#ifndef SMELT_VULKAN_UNIT_H
#define SMELT_VULKAN_UNIT_H
#include "driver.h"
#include "rt.h"
#include "vulkan_api.h"

enum { /* our own codes, beside VkResult's */
  TOO_LARGE = -1001, RANGE = -1002, GROUPS = -1003, ROUNDS = -1004
};
#define INSTEAD "; use smaller shapes, or place the kernel on another unit (--place), or compile with --fallback, so that the CPU takes over"

/* What a number says, and what to do. */
static const char *vk_told(int32_t code) {
  switch (code) {
  case TOO_LARGE: return "a size does not fit 31 bits" INSTEAD;
  case RANGE: return "a tensor is larger than the device's maxStorageBufferRange" INSTEAD;
  case GROUPS: return "a launch has more groups than the device starts (maxComputeWorkGroupCount)" INSTEAD;
  case ROUNDS:
    return "its loops may have more than 65535 rounds, after which this driver (llvmpipe, Mesa's for processors) ends them and says nothing" INSTEAD;
  default: return "codes are VkResult's (vulkan_core.h); use smaller shapes or compile without +vulkan";
  }
}

enum { MAGIC = 0x4B564D53, ROW = 8 };
#define ELASTIC 0x80000000u /* beside the bits of features in a row's flags */
enum { MAX_BOUND = 96, PUSHED_WORDS = 32, MAX_RANGES = 64, MAX_RECORDED = 4096, POOL_SETS = 256, POOL_BUFFERS = 2048 };
enum { MOST_TIMED = 64, RING = 4, MARKS = 64 };
enum { STAGING_BYTES = 1 << 20, ROUND = 1 << 12, LLVMPIPE_ROUNDS = 65535 };

typedef struct {
  vk_object buffer, memory;
  uint64_t bytes;
  char *host; /* where the host sees it; NULL: only through staging */
} vk_piece;

typedef struct vk_memory {
  vk_piece piece;
  vk_piece view;  /* what `map` has given out, of memory that the host does not see */
  int view_writes;
  struct vk_memory *next; /* of those that are freed when their work has ended */
} vk_memory;

typedef struct staging {
  vk_piece piece;
  uint64_t used;
  struct staging *next;
} staging;

typedef struct {
  vk_memory *memory; /* read from there at the end, or (NULL) from here: */
  const char *staged;
  uint64_t serial;   /* of the recording that brings it there */
  int32_t soon;      /* as soon as that has ended */
  uint64_t offset, bytes;
  char *host;
} pending_read;

typedef struct {
  vk_object buffer;
  uint64_t from, to;
  int written;
} used_range;

/* A command buffer with what its work uses until it has ended. */
typedef struct {
  vk_handle commands;
  vk_object fence;
  int32_t submitted; /* the code of its submission */
  staging *staging;
  vk_memory *dead;   /* released */
  vk_object *pools;  /* of descriptors, those of `pool` in use */
  uint32_t n_pools, pool, sets_left, buffers_left;
} vk_slot;

/* A tensor of a launch. at: where it begins in what is bound. */
typedef struct {
  vk_memory *memory; /* NULL: one without elements */
  uint64_t offset, bytes, at;
  int written;
} tensor;

/* A row of the package. */
typedef struct {
  uint32_t name, code, words, lanes, flags, n_bindings, n_parameters, details;
} part_row;

typedef struct {
  const uint32_t *row; /* of the form that it has; NULL: a kernel of another unit */
  const uint32_t *first; /* of its forms, the best */
  vk_object pipeline, layout, set_layout;
  uint32_t shared; /* bindings from this one on are one: more than the device has */
} vk_kernel;

typedef struct {
  vk_api vk;
  void *(*find)(vk_handle, const char *);
  const smelt_model_desc *model;
  const smelt_unit_desc *desc;
  uint32_t unit, family, memory_type, staging_type, features, float_controls, keeps_subnormals_16, most_bindings, most_lanes, most_groups[3];
  int32_t visible; /* the host sees the device's memory */
  uint64_t most_range, alignment, most_rounds;
  vk_handle instance, physical, device, queue;
  vk_object command_pool, cache;
  vk_piece nothing; /* bound in place of tensors without elements */
  uint32_t *package;
  int32_t *refusals; /* per row of the package: the code with which the driver refused it; 0: nobody asked, or it took it */
  vk_kernel *kernels;
  vk_slot ring[RING], *slot; /* slot: what is being recorded */
  uint64_t serial, reached;  /* recordings so far, of which n lies in ring[n % RING]; all up to `reached` have ended, the others are under way */
  uint64_t marks[MARKS], marked; /* per point, by number: the recording that it is the end of; the last point's number */
  staging *held;             /* of recordings that have ended: reads come from there */
  vk_memory *dead;           /* released, while reads may come from there */
  pending_read *reads;
  uint32_t n_reads, room_reads;
  used_range ranges[MAX_RANGES]; /* of what has been recorded since the last barrier, under way or not */
  uint32_t n_ranges, recorded;
  int32_t all_ranges;        /* and of a list */
  /* of the launch that is recorded */
  tensor *tensors;
  used_range *used;
  uint32_t *words;
  vk_buffer_info infos[MAX_BOUND + 1];
  int recording;
  int listing;              /* a list is: it takes no part in what goes on around it */
  int32_t hung;             /* it has not ended in time */
  uint32_t vendor, device_id, driver_version;
  uint8_t cache_id[16];     /* of all drivers whose compiled code is alike */
  int32_t cache_found;
  float timestamp_ns;       /* of one step of the device's clock; 0: queues have none */
  uint32_t timestamp_bits;  /* of a number of that clock */
  vk_object queries;        /* where launches leave its numbers, two each; 0: nobody asks */
  uint32_t n_timed;         /* launches since somebody asked, also those that had no room */
  char name[264];
  char form[128], lesser[640]; /* what was told last of a kernel's form */
} vk_unit;

static int32_t vk_failed(smelt_rt *rt, const vk_unit *u, const char *what, int32_t code) {
  return rt_error(rt, SMELT_DEVICE, "Vulkan device '%s': %s failed with code %d; %s", u->name[0] ? u->name : "none yet", what, (int)code, vk_told(code));
}

/* ---- opening ---- */
static const char *const loader_files[] = {"libvulkan.so.1", "libvulkan.so"}; /* the second on Android */

static int32_t load_functions(smelt_rt *rt, vk_unit *u) {
  void *loader = NULL;
  for (size_t i = 0; !loader && i < sizeof loader_files / sizeof *loader_files; i++) loader = dlopen(loader_files[i], SM_RTLD_NOW);
  void *find = loader ? dlsym(loader, "vkGetInstanceProcAddr") : NULL;
  if (!find) {
    const char *why = dlerror();
    return rt_error(rt, SMELT_DEVICE,
                    "Vulkan: libvulkan.so.1 cannot be loaded (%s); install the loader and a driver (Debian: libvulkan1 with "
                    "mesa-vulkan-drivers or the GPU's own package), or compile without +vulkan",
                    why ? why : "no reason given");
  }
  memcpy(&u->find, &find, sizeof find);
  return SMELT_OK; /* never unloaded: drivers own threads */
}

static void *look_up(const vk_unit *u, const char *name) { return u->find(u->instance, name); }

static int32_t create_instance(smelt_rt *rt, vk_unit *u) {
  void *at = look_up(u, "vkCreateInstance");
  if (!at) return rt_error(rt, SMELT_DEVICE, "Vulkan: the loader has no vkCreateInstance; reinstall it");
  memcpy(&u->vk.vkCreateInstance, &at, sizeof at);
  vk_application app = {.app = "smelt", .engine = "smelt", .api = VK_VERSION_1_1};
  vk_instance_create create = {.type = VK_INSTANCE_CREATE, .app = &app};
  int32_t code = u->vk.vkCreateInstance(&create, NULL, &u->instance);
  if (code)
    return rt_error(rt, SMELT_DEVICE,
                    "Vulkan: the loader is here but no driver of Vulkan 1.1 (code %d); install one (Debian: mesa-vulkan-drivers), or compile "
                    "without +vulkan",
                    (int)code);
#define LOOK_UP(result, name, parameters)                                                                               \
  if (!(at = look_up(u, #name))) return rt_error(rt, SMELT_DEVICE, "Vulkan: the driver has no " #name ", wanted Vulkan 1.1; update it"); \
  memcpy(&u->vk.name, &at, sizeof at);
  VK_FUNCTIONS(LOOK_UP)
  return SMELT_OK;
}

/* The first queue family that computes, which every device of Vulkan has; UINT32_MAX for a broken one. */
static uint32_t compute_family(const vk_unit *u, vk_handle physical) {
  vk_queue_family families[16];
  uint32_t n = sizeof families / sizeof *families;
  u->vk.vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, families);
  for (uint32_t i = 0; i < n; i++)
    if (families[i].flags & VK_QUEUE_COMPUTE && families[i].count) return i;
  return UINT32_MAX;
}

/* Of the numbers that the queues of the unit's family have for times; 0: none. */
static uint32_t timestamp_bits(const vk_unit *u) {
  vk_queue_family families[16];
  uint32_t n = sizeof families / sizeof *families;
  u->vk.vkGetPhysicalDeviceQueueFamilyProperties(u->physical, &n, families);
  return u->family < n ? families[u->family].timestamp_bits : 0;
}

static uint32_t number(const char **text) {
  uint64_t n = 0;
  while (**text >= '0' && **text <= '9' && n < UINT32_MAX) n = n * 10 + (uint64_t)(*(*text)++ - '0');
  return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* The number after `name=` in SMELT_VULKAN_WEAK, which tests set to play a weaker device; else `otherwise`. */
static uint32_t weaker(const char *name, uint32_t otherwise) {
  const char *text = getenv("SMELT_VULKAN_WEAK"), *at = text ? strstr(text, name) : NULL;
  while (at && (at[strlen(name)] != '=' || (at != text && at[-1] != ','))) at = strstr(at + 1, name);
  if (!at) return otherwise;
  at += strlen(name) + 1;
  uint32_t n = number(&at);
  return n < otherwise ? n : otherwise;
}

/* SMELT_VULKAN_DEVICE="n", counted from 0 in the loader's order, else a discrete GPU, an integrated one, a CPU, another. */
static int32_t choose_device(smelt_rt *rt, vk_unit *u) {
  enum { MOST = 16 };
  vk_handle devices[MOST];
  uint32_t n = MOST, best = 0, wanted = UINT32_MAX;
  int32_t code = u->vk.vkEnumeratePhysicalDevices(u->instance, &n, devices);
  const char *wish = getenv("SMELT_VULKAN_DEVICE");
  if (code && code != VK_INCOMPLETE) n = 0;
  if (wish && *wish) {
    const char *p = wish;
    wanted = number(&p);
    if (*p || wanted >= n)
      return rt_error(rt, SMELT_INVALID, "SMELT_VULKAN_DEVICE is '%.32s', wanted the number of a device below %u", wish, (unsigned)n);
  }
  for (uint32_t i = 0; i < n; i++) {
    static const uint32_t worth[] = {1, 4, 5, 3, 2}; /* by kind: other, integrated, discrete, virtual, CPU */
    vk_properties p;
    u->vk.vkGetPhysicalDeviceProperties(devices[i], &p);
    uint32_t here = p.kind < sizeof worth / sizeof *worth ? worth[p.kind] : 1;
    if (p.api < VK_VERSION_1_1 || compute_family(u, devices[i]) == UINT32_MAX || (wanted != UINT32_MAX && wanted != i) || here <= best) continue;
    best = here;
    u->physical = devices[i];
    memcpy(u->name, p.name, sizeof p.name);
  }
  if (u->physical) return SMELT_OK;
  return rt_error(rt, SMELT_DEVICE, "Vulkan: %u devices (code %d), none of Vulkan 1.1 that computes%s%.32s; check vulkaninfo, or compile without +vulkan",
                  (unsigned)n, (int)code, wish ? " for SMELT_VULKAN_DEVICE=" : "", wish ? wish : "");
}

/* The first memory type with all of `flags`, and if there is one with `wanted`, too; UINT32_MAX: none. */
static uint32_t memory_type(const vk_memories *m, uint32_t flags, uint32_t wanted) {
  uint32_t found = UINT32_MAX;
  for (uint32_t i = m->n_types; i-- > 0;) {
    uint32_t has = m->types[i].flags;
    if ((has & flags) != flags) continue;
    if ((has & wanted) == wanted) return i;
    found = i;
  }
  return found;
}

/* Memory that both see, where the device's own is; a discrete GPU reaches the host's by a slow bus, and has staging. */
static void choose_memory(vk_unit *u, const vk_properties *p) {
  vk_memories m;
  u->vk.vkGetPhysicalDeviceMemoryProperties(u->physical, &m);
  u->staging_type = memory_type(&m, VK_HOST_VISIBLE | VK_HOST_COHERENT, VK_HOST_CACHED);
  u->memory_type = UINT32_MAX;
  if (p->kind != VK_DISCRETE && weaker("visible", 1))
    u->memory_type = memory_type(&m, VK_DEVICE_LOCAL | VK_HOST_VISIBLE | VK_HOST_COHERENT, VK_HOST_CACHED);
  u->visible = u->memory_type != UINT32_MAX;
  if (u->visible) u->staging_type = u->memory_type;
  else u->memory_type = memory_type(&m, VK_DEVICE_LOCAL, 0);
}

static int has_extension(const vk_unit *u, const char *name) {
  uint32_t n = 0;
  if (u->vk.vkEnumerateDeviceExtensionProperties(u->physical, NULL, &n, NULL)) return 0;
  vk_extension *all = calloc(n + 1, sizeof *all);
  int found = 0;
  if (all && !u->vk.vkEnumerateDeviceExtensionProperties(u->physical, NULL, &n, all))
    for (uint32_t i = 0; i < n && !found; i++) found = !strcmp(all[i].name, name);
  free(all);
  return found;
}

/* A copy, as its modules are changed for the device, and words have to be aligned. */
static int32_t read_package(smelt_rt *rt, vk_unit *u) {
  uint64_t bytes = u->desc->code_bytes;
  u->package = malloc((size_t)bytes + 4);
  if (!u->package) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for the kernels of a Vulkan device; close others");
  memcpy(u->package, u->desc->code, (size_t)bytes);
  if (bytes < 8 || u->package[0] != MAGIC)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' has no SPIR-V where its kernels should be; compile it again", u->model->name);
  uint32_t n = u->package[1], most_bindings = 1, most_parameters = 1;
  for (uint32_t i = 0; i < n; i++) {
    const part_row *part = (const part_row *)(u->package + 2) + i;
    if (part->n_bindings > most_bindings) most_bindings = part->n_bindings;
    if (part->n_parameters > most_parameters) most_parameters = part->n_parameters;
  }
  u->refusals = calloc(n + 1, sizeof *u->refusals);
  u->tensors = calloc(most_bindings, sizeof *u->tensors);
  u->used = calloc(most_bindings, sizeof *u->used);
  u->words = calloc(most_parameters, sizeof *u->words);
  if (!u->refusals || !u->tensors || !u->used || !u->words)
    return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for the kernels of a Vulkan device; close others");
  return SMELT_OK;
}
#endif
