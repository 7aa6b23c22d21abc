// Checked Vulkan calls for Kompute's module: CMakeLists.txt compiles kp's sources so that they call
// __wrap_vkX where they say vkX, and here __real_vkX is vkX itself.
//
// kp 0.9.0 ignores the results of most calls that create something and goes on with handles that
// were never written: a full heap ends the process. Here each of them notes its error, and a call
// that would get a null handle fails or does nothing. Nothing is thrown here (Vulkan-Hpp's functions
// are noexcept): the first later call whose result kp does look at reports the failure, and the
// companion takes the noted result. Because kp's constructors throw then, without a destructor, what
// they had made so far is destroyed here.
#include "features.hpp"
#include "mapped.hpp"
#include "pipelines.hpp"
#include "platform.hpp"

#include <vulkan/vulkan.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#define EXPORT VISIBLE
#define WRAP(result, name, ...)                                                                    \
    result __real_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__)

namespace {

thread_local VkResult noted = VK_SUCCESS;

thread_local bool prefer_cached = false;

thread_local uint32_t required_subgroup = 0; // 0: any

struct UnfinishedTensor {
    uint32_t memory_types = 0; // bits of those that fit it
    uint32_t memory_type = 0;  // that of its memory
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
};
thread_local UnfinishedTensor tensor;

struct UnfinishedAlgorithm {
    VkDescriptorPool pool = VK_NULL_HANDLE;
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
    VkShaderModule shader = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkPipelineCache cache = VK_NULL_HANDLE;
    vksched::Interface interface;
    std::string code; // its SPIR-V
    bool has_set = false;
};
thread_local UnfinishedAlgorithm algorithm;

// The first error counts: those after it follow from it.
VkResult note(VkResult result)
{
    if (result < VK_SUCCESS && noted == VK_SUCCESS) {
        noted = result;
    }
    return result;
}

template<typename Handle>
VkResult note(VkResult result, Handle* handle)
{
    if (result < VK_SUCCESS) {
        *handle = VK_NULL_HANDLE;
    }
    return note(result);
}

void drop_tensor(VkDevice device)
{
    vkDestroyBuffer(device, tensor.buffer, nullptr);
    vkFreeMemory(device, tensor.memory, nullptr);
    tensor = {};
}

void drop_algorithm(VkDevice device)
{
    vkDestroyPipelineCache(device, algorithm.cache, nullptr);
    vkDestroyPipelineLayout(device, algorithm.layout, nullptr);
    vkDestroyShaderModule(device, algorithm.shader, nullptr);
    vkDestroyDescriptorSetLayout(device, algorithm.set_layout, nullptr);
    vkDestroyDescriptorPool(device, algorithm.pool, nullptr);
    algorithm = {};
}

} // namespace

namespace {

struct Opened {
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    bool featured = false;  // with what it has beyond Vulkan 1.1
    bool timelines = false; // with timeline semaphores
    bool host_query_reset = false; // the host may reset queries
    std::vector<uint32_t> families; // of its queues
};
std::mutex opened_mutex;
std::map<VkDevice, Opened> opened;

Opened find_opened(VkDevice device)
{
    std::lock_guard<std::mutex> lock(opened_mutex);
    const auto at = opened.find(device);
    return at == opened.end() ? Opened{} : at->second;
}

// Returns the physical device of a device, or null where kp did not make it.
VkPhysicalDevice find_physical(VkDevice device)
{
    return find_opened(device).physical;
}

// Returns a memory type like the one chosen that the host's caches cover, too: without, reading runs
// at some 100 MB/s on discrete cards, whose drivers list such types first. Else the one chosen.
uint32_t cached_type(VkDevice device, uint32_t chosen)
{
    const VkPhysicalDevice physical = find_physical(device);
    if (physical == VK_NULL_HANDLE) {
        return chosen;
    }
    VkPhysicalDeviceMemoryProperties properties{};
    vkGetPhysicalDeviceMemoryProperties(physical, &properties);
    const VkMemoryPropertyFlags wanted =
      properties.memoryTypes[chosen].propertyFlags | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    for (uint32_t i = 0; i < properties.memoryTypeCount; i++) {
        if ((tensor.memory_types & (1u << i)) &&
            (properties.memoryTypes[i].propertyFlags & wanted) == wanted) {
            return i;
        }
    }
    return chosen;
}

// Returns whether the tensor's bound memory is there, on CPU drivers. llvmpipe of Mesa 25 maps memory
// when it is bound. Where the process may have no more, it says VK_SUCCESS all the same, and kernels
// then end the process as they use mmap's -1. Mapping it once more tells.
VkResult check_bound(VkDevice device)
{
    const VkPhysicalDevice physical = find_physical(device);
    if (physical == VK_NULL_HANDLE) {
        return VK_SUCCESS;
    }
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(physical, &properties);
    VkPhysicalDeviceMemoryProperties memory{};
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    const VkMemoryPropertyFlags flags = memory.memoryTypes[tensor.memory_type].propertyFlags;
    if (properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU ||
        !(flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)) {
        return VK_SUCCESS;
    }
    void* data = nullptr;
    const VkResult said = vkMapMemory(device, tensor.memory, 0, VK_WHOLE_SIZE, 0, &data);
    if (said == VK_SUCCESS) {
        vkUnmapMemory(device, tensor.memory);
    }
    return vksched::check_mapped(said, &data) == VK_SUCCESS ? VK_SUCCESS
                                                            : VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

// How many bindings of one storage buffer each, in order, for compute shaders; 0 for all else.
uint32_t count_storage(const VkDescriptorSetLayoutCreateInfo* info)
{
    for (uint32_t i = 0; i < info->bindingCount; i++) {
        const VkDescriptorSetLayoutBinding& each = info->pBindings[i];
        if (each.binding != i || each.descriptorType != VK_DESCRIPTOR_TYPE_STORAGE_BUFFER ||
            each.descriptorCount != 1 || each.stageFlags != VK_SHADER_STAGE_COMPUTE_BIT) {
            return 0;
        }
    }
    return info->flags == 0 && info->pNext == nullptr ? info->bindingCount : 0;
}

// Bytes of the only range of push constants, 0 without one.
bool reads_push(const VkPipelineLayoutCreateInfo* info, uint32_t* bytes)
{
    *bytes = info->pushConstantRangeCount ? info->pPushConstantRanges[0].size : 0;
    return info->setLayoutCount == 1 && info->pushConstantRangeCount <= 1 &&
           (*bytes == 0 || (info->pPushConstantRanges[0].offset == 0 &&
                            info->pPushConstantRanges[0].stageFlags == VK_SHADER_STAGE_COMPUTE_BIT));
}

} // namespace

extern "C" {

// Returns the first error on this thread since the last call, and forgets it.
EXPORT VkResult vksched_take_error()
{
    VkResult result = noted;
    noted = VK_SUCCESS;
    return result;
}

// Whether memory that this thread allocates is to be fast for the host to read, where it sees it.
EXPORT void vksched_prefer_cached(int on)
{
    prefer_cached = on != 0;
}

// The size that the subgroups of this thread's next pipelines are to have; 0: any.
EXPORT void vksched_require_subgroup(uint32_t size)
{
    required_subgroup = size;
}

// Whether a device was opened with its features, or without as it would not open with them.
EXPORT int vksched_featured(VkDevice device)
{
    return find_opened(device).featured ? 1 : 0;
}

// Whether a device was opened with timeline semaphores.
EXPORT int vksched_timelines(VkDevice device)
{
    return find_opened(device).timelines ? 1 : 0;
}

// Whether a device was opened so that the host may reset queries.
EXPORT int vksched_host_query_reset(VkDevice device)
{
    return find_opened(device).host_query_reset ? 1 : 0;
}

// ---- instance and device: kp::Manager

WRAP(VkResult, vkCreateInstance, const VkInstanceCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkInstance* instance)
{
    return note(__real_vkCreateInstance(info, allocator, instance), instance);
}

WRAP(VkResult, vkEnumeratePhysicalDevices, VkInstance instance, uint32_t* count,
     VkPhysicalDevice* devices)
{
    if (instance == VK_NULL_HANDLE) {
        return note(VK_ERROR_INITIALIZATION_FAILED);
    }
    return note(__real_vkEnumeratePhysicalDevices(instance, count, devices));
}

WRAP(VkResult, vkCreateDevice, VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkDevice* device)
{
    // kp enables no feature; a device that does not open with those that it claims, whatever its
    // driver says of it, opens without
    VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
    Opened made;
    if (physical != VK_NULL_HANDLE && !info->pEnabledFeatures && !info->pNext) {
        const vksched::Features features(physical);
        std::vector<const char*> names(info->ppEnabledExtensionNames,
                                       info->ppEnabledExtensionNames + info->enabledExtensionCount);
        names.insert(names.end(), features.extensions.begin(), features.extensions.end());
        VkDeviceCreateInfo asked = *info;
        asked.pNext = &features.core;
        asked.enabledExtensionCount = static_cast<uint32_t>(names.size());
        asked.ppEnabledExtensionNames = names.data();
        result = __real_vkCreateDevice(physical, &asked, allocator, device);
        made.featured = result == VK_SUCCESS;
        made.timelines = made.featured && features.timelines.timelineSemaphore == VK_TRUE;
        made.host_query_reset = made.featured && features.host_query_reset.hostQueryReset == VK_TRUE;
    }
    if (result != VK_SUCCESS) {
        result = __real_vkCreateDevice(physical, info, allocator, device);
    }
    note(result, device);
    if (result == VK_SUCCESS) {
        std::lock_guard<std::mutex> lock(opened_mutex);
        made.physical = physical;
        for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
            made.families.push_back(info->pQueueCreateInfos[i].queueFamilyIndex);
        }
        opened[*device] = made;
    }
    return result;
}

WRAP(void, vkGetDeviceQueue, VkDevice device, uint32_t family, uint32_t index, VkQueue* queue)
{
    *queue = VK_NULL_HANDLE;
    if (device != VK_NULL_HANDLE) {
        __real_vkGetDeviceQueue(device, family, index, queue);
    }
}

WRAP(void, vkDestroyDevice, VkDevice device, const VkAllocationCallbacks* allocator)
{
    if (device != VK_NULL_HANDLE) {
        vksched::drop_shared(device);
        {
            std::lock_guard<std::mutex> lock(opened_mutex);
            opened.erase(device);
        }
        __real_vkDestroyDevice(device, allocator);
    }
}

// ---- command pool and buffer: kp::Sequence

WRAP(VkResult, vkCreateCommandPool, VkDevice device, const VkCommandPoolCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkCommandPool* pool)
{
    return note(__real_vkCreateCommandPool(device, info, allocator, pool), pool);
}

WRAP(VkResult, vkAllocateCommandBuffers, VkDevice device, const VkCommandBufferAllocateInfo* info,
     VkCommandBuffer* buffers)
{
    if (info->commandPool == VK_NULL_HANDLE) {
        return note(VK_ERROR_OUT_OF_HOST_MEMORY, buffers);
    }
    return note(__real_vkAllocateCommandBuffers(device, info, buffers), buffers);
}

WRAP(void, vkFreeCommandBuffers, VkDevice device, VkCommandPool pool, uint32_t count,
     const VkCommandBuffer* buffers)
{
    if (pool != VK_NULL_HANDLE) {
        __real_vkFreeCommandBuffers(device, pool, count, buffers);
    }
}

// ---- buffer and memory: kp::Tensor

WRAP(VkResult, vkCreateBuffer, VkDevice device, const VkBufferCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkBuffer* buffer)
{
    VkBufferCreateInfo with = *info; // kp lets only some kinds of buffers be copied
    with.usage |= VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    const std::vector<uint32_t> families = find_opened(device).families;
    if (families.size() > 1) { // values of one page belong to one family or another at a time
        with.sharingMode = VK_SHARING_MODE_CONCURRENT;
        with.queueFamilyIndexCount = static_cast<uint32_t>(families.size());
        with.pQueueFamilyIndices = families.data();
    }
    VkResult result = note(__real_vkCreateBuffer(device, &with, allocator, buffer), buffer);
    tensor = {};
    tensor.buffer = *buffer;
    return result;
}

WRAP(void, vkGetBufferMemoryRequirements, VkDevice device, VkBuffer buffer,
     VkMemoryRequirements* requirements)
{
    if (buffer == VK_NULL_HANDLE) {
        *requirements = {}; // fits no memory type, which kp reports
        return;
    }
    __real_vkGetBufferMemoryRequirements(device, buffer, requirements);
    tensor.memory_types = requirements->memoryTypeBits;
}

WRAP(VkResult, vkAllocateMemory, VkDevice device, const VkMemoryAllocateInfo* info,
     const VkAllocationCallbacks* allocator, VkDeviceMemory* memory)
{
    VkMemoryAllocateInfo with = *info;
    if (prefer_cached) {
        with.memoryTypeIndex = cached_type(device, info->memoryTypeIndex);
    }
    VkResult result = note(__real_vkAllocateMemory(device, &with, allocator, memory), memory);
    tensor.memory = *memory;
    tensor.memory_type = with.memoryTypeIndex;
    return result;
}

WRAP(VkResult, vkBindBufferMemory, VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
     VkDeviceSize offset)
{
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (memory != VK_NULL_HANDLE) {
        result = __real_vkBindBufferMemory(device, buffer, memory, offset);
        if (result == VK_SUCCESS && memory == tensor.memory) {
            result = check_bound(device);
        }
    }
    if (note(result) != VK_SUCCESS) {
        drop_tensor(device);
    }
    return result;
}

WRAP(VkResult, vkMapMemory, VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
     VkDeviceSize size, VkMemoryMapFlags flags, void** data)
{
    const VkResult said = __real_vkMapMemory(device, memory, offset, size, flags, data);
    const VkResult result = note(vksched::check_mapped(said, data));
    if (result != VK_SUCCESS && memory == tensor.memory) {
        drop_tensor(device);
    }
    return result;
}

// ---- descriptor set and pipeline: kp::Algorithm

WRAP(VkResult, vkCreateDescriptorPool, VkDevice device, const VkDescriptorPoolCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkDescriptorPool* pool)
{
    VkResult result = note(__real_vkCreateDescriptorPool(device, info, allocator, pool), pool);
    algorithm = {};
    algorithm.pool = *pool;
    return result;
}

WRAP(VkResult, vkCreateDescriptorSetLayout, VkDevice device,
     const VkDescriptorSetLayoutCreateInfo* info, const VkAllocationCallbacks* allocator,
     VkDescriptorSetLayout* layout)
{
    VkResult result =
      note(__real_vkCreateDescriptorSetLayout(device, info, allocator, layout), layout);
    algorithm.set_layout = *layout;
    algorithm.interface.buffers = count_storage(info);
    return result;
}

WRAP(VkResult, vkAllocateDescriptorSets, VkDevice device, const VkDescriptorSetAllocateInfo* info,
     VkDescriptorSet* sets)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (info->descriptorPool != VK_NULL_HANDLE && info->pSetLayouts[0] != VK_NULL_HANDLE) {
        result = __real_vkAllocateDescriptorSets(device, info, sets);
    }
    algorithm.has_set = note(result, sets) == VK_SUCCESS;
    return result;
}

WRAP(void, vkUpdateDescriptorSets, VkDevice device, uint32_t write_count,
     const VkWriteDescriptorSet* writes, uint32_t copy_count, const VkCopyDescriptorSet* copies)
{
    if (write_count == 0 || writes[0].dstSet != VK_NULL_HANDLE) {
        __real_vkUpdateDescriptorSets(device, write_count, writes, copy_count, copies);
    }
}

WRAP(VkResult, vkCreateShaderModule, VkDevice device, const VkShaderModuleCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkShaderModule* shader)
{
    VkResult result = note(__real_vkCreateShaderModule(device, info, allocator, shader), shader);
    algorithm.shader = *shader;
    algorithm.code.assign(reinterpret_cast<const char*>(info->pCode), info->codeSize);
    return result;
}

WRAP(VkResult, vkCreatePipelineLayout, VkDevice device, const VkPipelineLayoutCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkPipelineLayout* layout)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (algorithm.set_layout != VK_NULL_HANDLE) {
        result = __real_vkCreatePipelineLayout(device, info, allocator, layout);
    }
    note(result, layout);
    algorithm.layout = *layout;
    if (!reads_push(info, &algorithm.interface.push_bytes)) {
        algorithm.interface.buffers = 0;
    }
    return result;
}

WRAP(VkResult, vkCreatePipelineCache, VkDevice device, const VkPipelineCacheCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkPipelineCache* cache)
{
    VkResult result = note(__real_vkCreatePipelineCache(device, info, allocator, cache), cache);
    algorithm.cache = *cache;
    return result;
}

WRAP(VkResult, vkCreateComputePipelines, VkDevice device, VkPipelineCache cache, uint32_t count,
     const VkComputePipelineCreateInfo* infos, const VkAllocationCallbacks* allocator,
     VkPipeline* pipelines)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (algorithm.has_set && algorithm.shader != VK_NULL_HANDLE &&
        algorithm.layout != VK_NULL_HANDLE && algorithm.cache != VK_NULL_HANDLE) {
        VkComputePipelineCreateInfo like = *infos;
        VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT required{};
        vksched::require_subgroups(like.stage, required_subgroup, required);
        const VkPipelineLayout layout = vksched::shared_layout(device, algorithm.interface);
        if (layout == VK_NULL_HANDLE) {
            result = __real_vkCreateComputePipelines(device, cache, count, &like, allocator, pipelines);
        } else {
            like.layout = layout;
            result = vksched::take_pipeline(device, like, algorithm.code, cache, pipelines);
        }
    }
    if (note(result) != VK_SUCCESS) {
        drop_algorithm(device);
    }
    algorithm = {};
    return result;
}

WRAP(void, vkDestroyPipeline, VkDevice device, VkPipeline pipeline,
     const VkAllocationCallbacks* allocator)
{
    (void)allocator; // kp's is null, as that of the shared pipelines is
    vksched::give_pipeline(device, pipeline);
}

} // extern "C"
