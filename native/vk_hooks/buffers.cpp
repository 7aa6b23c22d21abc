// Hooks of kp::Tensor: buffer and memory.
#include "vk_hooks/checked_calls.hpp"
#include "vk_hooks/mapped.hpp"

using vksched::find_open_device;
using vksched::record;

namespace {

thread_local bool prefer_cached = false;

struct PartialTensor {
    uint32_t memory_types = 0; // bits of the supported types
    uint32_t memory_type = 0;  // of its memory
    VkBuffer buffer = VK_NULL_HANDLE;
    VkDeviceMemory memory = VK_NULL_HANDLE;
};
thread_local PartialTensor tensor;

void destroy_tensor(VkDevice device)
{
    vkDestroyBuffer(device, tensor.buffer, nullptr);
    vkFreeMemory(device, tensor.memory, nullptr);
    tensor = {};
}

// Return a memory type with the properties of the chosen one that is HOST_CACHED, too, if there is
// one. Reads of uncached memory run at some 100 MB/s on discrete cards, whose drivers list such
// types first.
uint32_t host_cached_type(VkDevice device, uint32_t chosen)
{
    const VkPhysicalDevice physical = find_open_device(device).physical;
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

// Check that bound memory is mapped, on CPU drivers. llvmpipe of Mesa 25 maps memory when it is
// bound. If the process may have no more memory, it returns VK_SUCCESS nevertheless, and kernels
// crash with mmap's -1. Mapping the memory once more detects this.
VkResult check_bound_memory(VkDevice device)
{
    const VkPhysicalDevice physical = find_open_device(device).physical;
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
    const VkResult mapped = vkMapMemory(device, tensor.memory, 0, VK_WHOLE_SIZE, 0, &data);
    if (mapped == VK_SUCCESS) {
        vkUnmapMemory(device, tensor.memory);
    }
    return vksched::check_mapped(mapped, &data) == VK_SUCCESS ? VK_SUCCESS
                                                            : VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

} // namespace

extern "C" {

// Set whether memory that this thread allocates prefers HOST_CACHED types.
EXPORT void vksched_set_prefer_cached(int on)
{
    prefer_cached = on != 0;
}

WRAP(VkResult, vkCreateBuffer, VkDevice device, const VkBufferCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkBuffer* buffer)
{
    VkBufferCreateInfo adjusted_info = *info; // kp allows copies of some kinds of buffers only
    adjusted_info.usage |= VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    const std::vector<uint32_t> families = find_open_device(device).families;
    if (families.size() > 1) { // queues of several families access a page
        adjusted_info.sharingMode = VK_SHARING_MODE_CONCURRENT;
        adjusted_info.queueFamilyIndexCount = static_cast<uint32_t>(families.size());
        adjusted_info.pQueueFamilyIndices = families.data();
    }
    VkResult result = record(__real_vkCreateBuffer(device, &adjusted_info, allocator, buffer), buffer);
    tensor = {};
    tensor.buffer = *buffer;
    return result;
}

WRAP(void, vkGetBufferMemoryRequirements, VkDevice device, VkBuffer buffer,
     VkMemoryRequirements* requirements)
{
    if (buffer == VK_NULL_HANDLE) {
        *requirements = {}; // supports no memory type, which kp reports
        return;
    }
    __real_vkGetBufferMemoryRequirements(device, buffer, requirements);
    tensor.memory_types = requirements->memoryTypeBits;
}

WRAP(VkResult, vkAllocateMemory, VkDevice device, const VkMemoryAllocateInfo* info,
     const VkAllocationCallbacks* allocator, VkDeviceMemory* memory)
{
    VkMemoryAllocateInfo adjusted_info = *info;
    if (prefer_cached) {
        adjusted_info.memoryTypeIndex = host_cached_type(device, info->memoryTypeIndex);
    }
    VkResult result = record(__real_vkAllocateMemory(device, &adjusted_info, allocator, memory), memory);
    tensor.memory = *memory;
    tensor.memory_type = adjusted_info.memoryTypeIndex;
    return result;
}

WRAP(VkResult, vkBindBufferMemory, VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
     VkDeviceSize offset)
{
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (memory != VK_NULL_HANDLE) {
        result = __real_vkBindBufferMemory(device, buffer, memory, offset);
        if (result == VK_SUCCESS && memory == tensor.memory) {
            result = check_bound_memory(device);
        }
    }
    if (record(result) != VK_SUCCESS) {
        destroy_tensor(device);
    }
    return result;
}

WRAP(VkResult, vkMapMemory, VkDevice device, VkDeviceMemory memory, VkDeviceSize offset,
     VkDeviceSize size, VkMemoryMapFlags flags, void** data)
{
    const VkResult mapped = __real_vkMapMemory(device, memory, offset, size, flags, data);
    const VkResult result = record(vksched::check_mapped(mapped, data));
    if (result != VK_SUCCESS && memory == tensor.memory) {
        destroy_tensor(device);
    }
    return result;
}

} // extern "C"
