// Checked Vulkan calls for Kompute's module, linked in with the linker's --wrap.
//
// kp 0.9.0 ignores the results of most calls that create something and goes on with handles that
// were never written: a full heap ends the process. Here each of them notes its error, and a call
// that would get a null handle fails or does nothing. Nothing is thrown here (Vulkan-Hpp's functions
// are noexcept): the first later call whose result kp does look at reports the failure, and the
// companion takes the noted result. Because kp's constructors throw then, without a destructor, what
// they had made so far is destroyed here.
#include <vulkan/vulkan.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#define EXPORT __attribute__((visibility("default")))
#define WRAP(result, name, ...)                                                                    \
    result __real_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__)

namespace {

thread_local VkResult noted = VK_SUCCESS;

struct UnfinishedTensor {
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
    uint32_t bindings = 0;
    uint32_t push_bytes = 0;
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

extern "C" {

VkResult __real_vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo* info,
                                      const VkAllocationCallbacks* allocator,
                                      VkPipelineCache* cache);
VkResult __real_vkCreateDescriptorSetLayout(VkDevice device,
                                            const VkDescriptorSetLayoutCreateInfo* info,
                                            const VkAllocationCallbacks* allocator,
                                            VkDescriptorSetLayout* layout);
VkResult __real_vkCreatePipelineLayout(VkDevice device, const VkPipelineLayoutCreateInfo* info,
                                       const VkAllocationCallbacks* allocator,
                                       VkPipelineLayout* layout);

} // extern "C"

// ---- one pipeline cache for each device, as kp makes a new and empty one for each Algorithm, so
// that drivers compile the same shader again and again

namespace {

std::mutex caches_mutex;
std::map<VkDevice, VkPipelineCache> caches;

// Null where the driver gives none: kp's own serves then.
VkPipelineCache shared_cache(VkDevice device)
{
    std::lock_guard<std::mutex> lock(caches_mutex);
    auto at = caches.find(device);
    if (at == caches.end()) {
        VkPipelineCacheCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
        VkPipelineCache cache = VK_NULL_HANDLE;
        if (__real_vkCreatePipelineCache(device, &info, nullptr, &cache) != VK_SUCCESS) {
            cache = VK_NULL_HANDLE;
        }
        at = caches.emplace(device, cache).first;
    }
    return at->second;
}

void drop_shared_cache(VkDevice device)
{
    std::lock_guard<std::mutex> lock(caches_mutex);
    auto at = caches.find(device);
    if (at != caches.end()) {
        vkDestroyPipelineCache(device, at->second, nullptr);
        caches.erase(at);
    }
}

// ---- one pipeline layout for each interface of shaders, as drivers that look a pipeline up by its
// layout (SwiftShader) find none in the cache when kp makes a new one for each Algorithm. kp still
// binds and pushes with its own: layouts that are defined alike are compatible.

struct SharedLayout {
    VkDescriptorSetLayout set = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
};
using Interface = std::pair<uint32_t, uint32_t>; // storage buffers, bytes of push constants

std::map<VkDevice, std::map<Interface, SharedLayout>> layouts;

void drop_layout(VkDevice device, const SharedLayout& shared)
{
    vkDestroyPipelineLayout(device, shared.layout, nullptr);
    vkDestroyDescriptorSetLayout(device, shared.set, nullptr);
}

SharedLayout make_layout(VkDevice device, Interface wanted)
{
    std::vector<VkDescriptorSetLayoutBinding> bindings(wanted.first);
    for (uint32_t i = 0; i < wanted.first; i++) {
        bindings[i].binding = i;
        bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        bindings[i].descriptorCount = 1;
        bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    VkDescriptorSetLayoutCreateInfo set_info{};
    set_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set_info.bindingCount = wanted.first;
    set_info.pBindings = bindings.data();
    VkPushConstantRange range{ VK_SHADER_STAGE_COMPUTE_BIT, 0, wanted.second };
    SharedLayout made;
    if (__real_vkCreateDescriptorSetLayout(device, &set_info, nullptr, &made.set) != VK_SUCCESS) {
        return {};
    }
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.setLayoutCount = 1;
    info.pSetLayouts = &made.set;
    info.pushConstantRangeCount = wanted.second ? 1 : 0;
    info.pPushConstantRanges = &range;
    if (__real_vkCreatePipelineLayout(device, &info, nullptr, &made.layout) != VK_SUCCESS) {
        made.layout = VK_NULL_HANDLE;
        drop_layout(device, made);
        return {};
    }
    return made;
}

// Null where the interface is another kind of kp's, or memory is short: kp's own serves then.
VkPipelineLayout shared_layout(VkDevice device, Interface wanted)
{
    if (wanted.first == 0) {
        return VK_NULL_HANDLE;
    }
    std::lock_guard<std::mutex> lock(caches_mutex);
    auto& known = layouts[device];
    auto at = known.find(wanted);
    if (at == known.end()) {
        SharedLayout made = make_layout(device, wanted);
        if (made.layout == VK_NULL_HANDLE) {
            return VK_NULL_HANDLE;
        }
        at = known.emplace(wanted, made).first;
    }
    return at->second.layout;
}

void drop_shared_layouts(VkDevice device)
{
    std::lock_guard<std::mutex> lock(caches_mutex);
    auto at = layouts.find(device);
    if (at != layouts.end()) {
        for (const auto& known : at->second) {
            drop_layout(device, known.second);
        }
        layouts.erase(at);
    }
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
    return note(__real_vkCreateDevice(physical, info, allocator, device), device);
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
        drop_shared_cache(device);
        drop_shared_layouts(device);
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
    VkResult result = note(__real_vkCreateBuffer(device, info, allocator, buffer), buffer);
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
}

WRAP(VkResult, vkAllocateMemory, VkDevice device, const VkMemoryAllocateInfo* info,
     const VkAllocationCallbacks* allocator, VkDeviceMemory* memory)
{
    VkResult result = note(__real_vkAllocateMemory(device, info, allocator, memory), memory);
    tensor.memory = *memory;
    return result;
}

WRAP(VkResult, vkBindBufferMemory, VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
     VkDeviceSize offset)
{
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (memory != VK_NULL_HANDLE) {
        result = __real_vkBindBufferMemory(device, buffer, memory, offset);
    }
    if (note(result) != VK_SUCCESS) {
        drop_tensor(device);
    }
    return result;
}

WRAP(VkResult, vkMapMemory, VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
     VkDeviceSize size, VkMemoryMapFlags flags, void** data)
{
    VkResult result = note(__real_vkMapMemory(device, memory, offset, size, flags, data));
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
    algorithm.bindings = count_storage(info);
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
    if (!reads_push(info, &algorithm.push_bytes)) {
        algorithm.bindings = 0;
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
        VkPipelineCache shared = shared_cache(device);
        VkPipelineLayout layout =
          shared_layout(device, { algorithm.bindings, algorithm.push_bytes });
        std::vector<VkComputePipelineCreateInfo> with(infos, infos + count);
        for (auto& info : with) {
            info.layout = layout != VK_NULL_HANDLE ? layout : info.layout;
        }
        result = __real_vkCreateComputePipelines(device, shared != VK_NULL_HANDLE ? shared : cache,
                                                 count, with.data(), allocator, pipelines);
    }
    if (note(result) != VK_SUCCESS) {
        drop_algorithm(device);
    }
    algorithm = {};
    return result;
}

} // extern "C"
