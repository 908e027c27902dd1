/* vulkan_api.h: the part of Vulkan 1.1 that vulkan_driver.c uses, declared by hand, as no compiler here has the vendor's headers.
 * Names are Vulkan's without Vk; what is not used of a structure is a filler of its size. */
#ifndef SMELT_VULKAN_API_H
#define SMELT_VULKAN_API_H
#include <stddef.h>
#include <stdint.h>

typedef void *vk_handle;   /* instance, physical device, device, queue, command buffer */
typedef uint64_t vk_object; /* all others */

enum {
  VK_TIMEOUT = 2, VK_INCOMPLETE = 5, VK_OUT_OF_HOST_MEMORY = -1, VK_OUT_OF_DEVICE_MEMORY = -2,
  VK_INSTANCE_CREATE = 1, VK_QUEUE_CREATE = 2, VK_DEVICE_CREATE = 3, VK_SUBMIT = 4, VK_MEMORY_ALLOCATE = 5, VK_FENCE_CREATE = 8,
  VK_QUERY_POOL_CREATE = 11, VK_BUFFER_CREATE = 12, VK_SHADER_CREATE = 16, VK_CACHE_CREATE = 17, VK_STAGE_CREATE = 18, VK_PIPELINE_CREATE = 29,
  VK_PIPELINE_LAYOUT_CREATE = 30, VK_SET_LAYOUT_CREATE = 32, VK_POOL_CREATE = 33, VK_SET_ALLOCATE = 34, VK_WRITE_SET = 35,
  VK_COMMAND_POOL_CREATE = 39, VK_COMMAND_ALLOCATE = 40, VK_COMMAND_BEGIN = 42, VK_MEMORY_BARRIER = 46,
  VK_FEATURES_2 = 1000059000, VK_PROPERTIES_2 = 1000059001, VK_SMALL_TYPES = 1000082000, VK_STORAGE_16 = 1000083000, VK_STORAGE_8 = 1000177000,
  VK_FLOAT_CONTROLS_PROPERTIES = 1000197000, VK_SUBGROUP_PROPERTIES = 1000094000, VK_SUBGROUP_BASIC = 1, VK_SUBGROUP_ARITHMETIC = 4,
  VK_DISCRETE = 2, VK_QUEUE_COMPUTE = 2,
  VK_DEVICE_LOCAL = 1, VK_HOST_VISIBLE = 2, VK_HOST_COHERENT = 4, VK_HOST_CACHED = 8,
  VK_USAGE_ALL = 1 | 2 | 32, /* transfer from and to, storage */
  VK_STORAGE_DESCRIPTOR = 7, VK_STAGE_COMPUTE = 32, VK_BIND_COMPUTE = 1,
  VK_AT_COMPUTE = 0x800, VK_AT_TRANSFER = 0x1000, VK_AT_HOST = 0x4000,
  VK_SHADER_READ = 0x20, VK_SHADER_WRITE = 0x40, VK_TRANSFER_READ = 0x800, VK_TRANSFER_WRITE = 0x1000, VK_HOST_READ = 0x2000,
  VK_RESET_COMMAND_BUFFER = 2, VK_ONE_TIME = 1, VK_SIMULTANEOUS = 4, VK_TIMESTAMP = 2, VK_RESULT_64 = 1
};
#define VK_VERSION_1_1 0x401000u
#define VK_WHOLE_SIZE (~(uint64_t)0)

typedef struct { int32_t type; const void *next; const char *app; uint32_t app_version; const char *engine; uint32_t engine_version, api; } vk_application;
typedef struct { int32_t type; const void *next; uint32_t flags; const vk_application *app; uint32_t n_layers; const char *const *layers;
  uint32_t n_extensions; const char *const *extensions; } vk_instance_create;
typedef struct { char name[256]; uint32_t version; } vk_extension;
typedef struct {
  uint32_t images[7], max_storage_range, max_push, max_allocations, max_samplers;
  uint64_t granularity, sparse_space;
  uint32_t max_sets, stage_samplers, stage_uniforms, max_stage_buffers, stage_images[3], max_stage_resources, set_samplers, set_uniforms[2],
      max_set_buffers, graphics[26], max_shared, max_groups[3], max_invocations, max_group_size[3], precision[3], draws[2];
  float samplers[2];
  uint32_t viewports[3];
  float viewport_range[2];
  uint32_t viewport_bits;
  size_t map_alignment;
  uint64_t texel_alignment, uniform_alignment, storage_alignment;
  uint32_t graphics_too[21], timestamps;
  float timestamp_ns;
  uint32_t rest[73];
} vk_limits;
typedef struct { uint32_t api, driver, vendor, device, kind; char name[256]; uint8_t cache_id[16]; vk_limits limits; } vk_properties;
typedef struct { int32_t type; void *next; vk_properties properties; } vk_properties_2;
typedef struct { int32_t type; void *next; uint32_t independence[2], keeps_zero_inf_nan_16, keeps_zero_inf_nan_32, keeps_zero_inf_nan_64, keeps_subnormals_16,
  subnormals[5], rounds_to_even_16, rest[5]; } vk_float_controls;
typedef struct { int32_t type; void *next; uint32_t size, stages, operations, all_stages; } vk_subgroups;
typedef struct { uint32_t before[39], float64, int64, int16, rest[13]; } vk_features;
typedef struct { int32_t type; void *next; vk_features features; } vk_features_2;
typedef struct { int32_t type; void *next; uint32_t buffers, uniforms, pushed, stages; } vk_storage_16;
typedef struct { int32_t type; void *next; uint32_t buffers, uniforms, pushed; } vk_storage_8;
typedef struct { int32_t type; void *next; uint32_t float16, int8; } vk_small_types;
typedef struct { uint32_t flags, count, timestamp_bits, granularity[3]; } vk_queue_family;
typedef struct { uint32_t n_types; struct { uint32_t flags, heap; } types[32]; uint32_t n_heaps; struct { uint64_t bytes; uint32_t flags; } heaps[16]; } vk_memories;
typedef struct { int32_t type; const void *next; uint32_t flags, family, count; const float *priorities; } vk_queue_create;
typedef struct { int32_t type; const void *next; uint32_t flags, n_queues; const vk_queue_create *queues; uint32_t n_layers; const char *const *layers;
  uint32_t n_extensions; const char *const *extensions; const vk_features *features; } vk_device_create;
typedef struct { int32_t type; const void *next; uint32_t flags; uint64_t bytes; uint32_t usage, sharing, n_families; const uint32_t *families; } vk_buffer_create;
typedef struct { uint64_t bytes, alignment; uint32_t types; } vk_requirements;
typedef struct { int32_t type; const void *next; uint64_t bytes; uint32_t memory_type; } vk_memory_allocate;
typedef struct { int32_t type; const void *next; uint32_t flags; size_t bytes; const uint32_t *code; } vk_shader_create;
typedef struct { int32_t type; const void *next; uint32_t flags; size_t bytes; const void *data; } vk_cache_create;
typedef struct { uint32_t bytes, version, vendor, device; uint8_t cache_id[16]; } vk_cache_head;
typedef struct { uint32_t id, offset; size_t bytes; } vk_special_entry;
typedef struct { uint32_t n; const vk_special_entry *entries; size_t bytes; const void *data; } vk_special;
typedef struct { int32_t type; const void *next; uint32_t flags, stage; vk_object module; const char *name; const vk_special *special; } vk_stage_create;
typedef struct { int32_t type; const void *next; uint32_t flags; vk_stage_create stage; vk_object layout, base; int32_t base_index; } vk_pipeline_create;
typedef struct { uint32_t stages, offset, bytes; } vk_push_range;
typedef struct { int32_t type; const void *next; uint32_t flags, n_sets; const vk_object *sets; uint32_t n_pushes; const vk_push_range *pushes; } vk_layout_create;
typedef struct { uint32_t binding; int32_t type; uint32_t count, stages; const vk_object *samplers; } vk_set_binding;
typedef struct { int32_t type; const void *next; uint32_t flags, n; const vk_set_binding *bindings; } vk_set_layout_create;
typedef struct { int32_t type; uint32_t count; } vk_pool_size;
typedef struct { int32_t type; const void *next; uint32_t flags, max_sets, n; const vk_pool_size *sizes; } vk_pool_create;
typedef struct { int32_t type; const void *next; vk_object pool; uint32_t n; const vk_object *layouts; } vk_set_allocate;
typedef struct { vk_object buffer; uint64_t offset, range; } vk_buffer_info;
typedef struct { int32_t type; const void *next; vk_object set; uint32_t binding, element, count; int32_t descriptor; const void *images;
  const vk_buffer_info *buffers; const void *texels; } vk_write_set;
typedef struct { int32_t type; const void *next; uint32_t flags, family; } vk_command_pool_create;
typedef struct { int32_t type; const void *next; vk_object pool; int32_t level; uint32_t n; } vk_command_allocate;
typedef struct { int32_t type; const void *next; uint32_t flags; const void *inherited; } vk_command_begin;
typedef struct { int32_t type; const void *next; uint32_t from, to; } vk_memory_barrier;
typedef struct { uint64_t from, to, bytes; } vk_buffer_copy;
typedef struct { int32_t type; const void *next; uint32_t n_waits; const vk_object *waits; const uint32_t *stages; uint32_t n; const vk_handle *commands;
  uint32_t n_signals; const vk_object *signals; } vk_submit;
typedef struct { int32_t type; const void *next; uint32_t flags; } vk_fence_create;
typedef struct { int32_t type; const void *next; uint32_t flags; int32_t kind; uint32_t count, statistics; } vk_query_pool_create;

/* Functions, by whom they are asked from: nobody, or an instance. */
#define VK_FIRST(X)                                                                                                     \
  X(int32_t, vkCreateInstance, (const vk_instance_create *, const void *, vk_handle *))
#define VK_FUNCTIONS(X)                                                                                                 \
  X(void, vkDestroyInstance, (vk_handle, const void *))                                                                 \
  X(int32_t, vkEnumeratePhysicalDevices, (vk_handle, uint32_t *, vk_handle *))                                          \
  X(void, vkGetPhysicalDeviceProperties, (vk_handle, vk_properties *))                                                  \
  X(void, vkGetPhysicalDeviceProperties2, (vk_handle, vk_properties_2 *))                                               \
  X(void, vkGetPhysicalDeviceFeatures2, (vk_handle, vk_features_2 *))                                                   \
  X(void, vkGetPhysicalDeviceQueueFamilyProperties, (vk_handle, uint32_t *, vk_queue_family *))                         \
  X(void, vkGetPhysicalDeviceMemoryProperties, (vk_handle, vk_memories *))                                              \
  X(int32_t, vkEnumerateDeviceExtensionProperties, (vk_handle, const char *, uint32_t *, vk_extension *))               \
  X(int32_t, vkCreateDevice, (vk_handle, const vk_device_create *, const void *, vk_handle *))                          \
  X(void, vkDestroyDevice, (vk_handle, const void *))                                                                   \
  X(void, vkGetDeviceQueue, (vk_handle, uint32_t, uint32_t, vk_handle *))                                               \
  X(int32_t, vkDeviceWaitIdle, (vk_handle))                                                                             \
  X(int32_t, vkCreateBuffer, (vk_handle, const vk_buffer_create *, const void *, vk_object *))                          \
  X(void, vkDestroyBuffer, (vk_handle, vk_object, const void *))                                                        \
  X(void, vkGetBufferMemoryRequirements, (vk_handle, vk_object, vk_requirements *))                                     \
  X(int32_t, vkAllocateMemory, (vk_handle, const vk_memory_allocate *, const void *, vk_object *))                      \
  X(void, vkFreeMemory, (vk_handle, vk_object, const void *))                                                           \
  X(int32_t, vkBindBufferMemory, (vk_handle, vk_object, vk_object, uint64_t))                                           \
  X(int32_t, vkMapMemory, (vk_handle, vk_object, uint64_t, uint64_t, uint32_t, void **))                                \
  X(int32_t, vkCreateShaderModule, (vk_handle, const vk_shader_create *, const void *, vk_object *))                    \
  X(void, vkDestroyShaderModule, (vk_handle, vk_object, const void *))                                                  \
  X(int32_t, vkCreatePipelineCache, (vk_handle, const vk_cache_create *, const void *, vk_object *))                    \
  X(void, vkDestroyPipelineCache, (vk_handle, vk_object, const void *))                                                 \
  X(int32_t, vkGetPipelineCacheData, (vk_handle, vk_object, size_t *, void *))                                          \
  X(int32_t, vkCreateComputePipelines, (vk_handle, vk_object, uint32_t, const vk_pipeline_create *, const void *, vk_object *)) \
  X(void, vkDestroyPipeline, (vk_handle, vk_object, const void *))                                                      \
  X(int32_t, vkCreatePipelineLayout, (vk_handle, const vk_layout_create *, const void *, vk_object *))                  \
  X(void, vkDestroyPipelineLayout, (vk_handle, vk_object, const void *))                                                \
  X(int32_t, vkCreateDescriptorSetLayout, (vk_handle, const vk_set_layout_create *, const void *, vk_object *))         \
  X(void, vkDestroyDescriptorSetLayout, (vk_handle, vk_object, const void *))                                           \
  X(int32_t, vkCreateDescriptorPool, (vk_handle, const vk_pool_create *, const void *, vk_object *))                    \
  X(void, vkDestroyDescriptorPool, (vk_handle, vk_object, const void *))                                                \
  X(int32_t, vkResetDescriptorPool, (vk_handle, vk_object, uint32_t))                                                   \
  X(int32_t, vkAllocateDescriptorSets, (vk_handle, const vk_set_allocate *, vk_object *))                               \
  X(void, vkUpdateDescriptorSets, (vk_handle, uint32_t, const vk_write_set *, uint32_t, const void *))                  \
  X(int32_t, vkCreateCommandPool, (vk_handle, const vk_command_pool_create *, const void *, vk_object *))               \
  X(void, vkDestroyCommandPool, (vk_handle, vk_object, const void *))                                                   \
  X(int32_t, vkAllocateCommandBuffers, (vk_handle, const vk_command_allocate *, vk_handle *))                           \
  X(void, vkFreeCommandBuffers, (vk_handle, vk_object, uint32_t, const vk_handle *))                                    \
  X(int32_t, vkBeginCommandBuffer, (vk_handle, const vk_command_begin *))                                               \
  X(int32_t, vkEndCommandBuffer, (vk_handle))                                                                           \
  X(int32_t, vkResetCommandBuffer, (vk_handle, uint32_t))                                                               \
  X(void, vkCmdBindPipeline, (vk_handle, int32_t, vk_object))                                                           \
  X(void, vkCmdBindDescriptorSets, (vk_handle, int32_t, vk_object, uint32_t, uint32_t, const vk_object *, uint32_t, const uint32_t *)) \
  X(void, vkCmdPushConstants, (vk_handle, vk_object, uint32_t, uint32_t, uint32_t, const void *))                       \
  X(void, vkCmdDispatch, (vk_handle, uint32_t, uint32_t, uint32_t))                                                     \
  X(void, vkCmdCopyBuffer, (vk_handle, vk_object, vk_object, uint32_t, const vk_buffer_copy *))                         \
  X(void, vkCmdPipelineBarrier, (vk_handle, uint32_t, uint32_t, uint32_t, uint32_t, const vk_memory_barrier *, uint32_t, const void *, uint32_t, const void *)) \
  X(int32_t, vkCreateQueryPool, (vk_handle, const vk_query_pool_create *, const void *, vk_object *))                   \
  X(void, vkDestroyQueryPool, (vk_handle, vk_object, const void *))                                                     \
  X(void, vkCmdResetQueryPool, (vk_handle, vk_object, uint32_t, uint32_t))                                              \
  X(void, vkCmdWriteTimestamp, (vk_handle, uint32_t, vk_object, uint32_t))                                              \
  X(int32_t, vkGetQueryPoolResults, (vk_handle, vk_object, uint32_t, uint32_t, size_t, void *, uint64_t, uint32_t))     \
  X(int32_t, vkCreateFence, (vk_handle, const vk_fence_create *, const void *, vk_object *))                            \
  X(void, vkDestroyFence, (vk_handle, vk_object, const void *))                                                         \
  X(int32_t, vkResetFences, (vk_handle, uint32_t, const vk_object *))                                                   \
  X(int32_t, vkWaitForFences, (vk_handle, uint32_t, const vk_object *, uint32_t, uint64_t))                             \
  X(int32_t, vkQueueSubmit, (vk_handle, uint32_t, const vk_submit *, vk_object))

#define VK_POINTER(result, name, parameters) result(*name) parameters;
typedef struct {
  VK_FIRST(VK_POINTER)
  VK_FUNCTIONS(VK_POINTER)
} vk_api;
#endif
