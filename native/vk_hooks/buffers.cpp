// Buffer and memory: kp::Tensor.
#include "vk_hooks/checked_calls.hpp"
#include "vk_hooks/mapped.hpp"

using vksched::find_opened;
using vksched::note;

namespace {

thread_local bool prefer_cached = false;

struct UnfinishedTensor {
    uint32_t memory_types = 0; // bits of those that fit it
    uint32_t memory_type = 0;  // that of its memory
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
};
thread_local UnfinishedTensor tensor;

void drop_tensor(VkDevice device)
{
    vkDestroyBuffer(device, tensor.buffer, nullptr);
    vkFreeMemory(device, tensor.memory, nullptr);
    tensor = {};
}

// Returns a memory type like the one chosen that the host's caches cover, too: without, reading runs
// at some 100 MB/s on discrete cards, whose drivers list such types first. Else the one chosen.
uint32_t cached_type(VkDevice device, uint32_t chosen)
{
    const VkPhysicalDevice physical = find_opened(device).physical;
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
    const VkPhysicalDevice physical = find_opened(device).physical;
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

} // namespace

extern "C" {

// Whether memory that this thread allocates is to be fast for the host to read, where it sees it.
EXPORT void vksched_prefer_cached(int on)
{
    prefer_cached = on != 0;
}

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

} // extern "C"
