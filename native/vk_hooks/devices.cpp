// Instance, device, command pool and buffer: kp::Manager and kp::Sequence.
#include "vk_hooks/checked_calls.hpp"
#include "vk_hooks/features.hpp"
#include "vk_hooks/pipelines.hpp"

#include <map>
#include <mutex>

namespace {

thread_local VkResult noted = VK_SUCCESS; // the first error
thread_local bool robust_access = false;

std::mutex opened_mutex;
std::map<VkDevice, vksched::Opened> opened;

} // namespace

namespace vksched {

VkResult note(VkResult result)
{
    if (result < VK_SUCCESS && noted == VK_SUCCESS) {
        noted = result;
    }
    return result;
}

Opened find_opened(VkDevice device)
{
    std::lock_guard<std::mutex> lock(opened_mutex);
    const auto at = opened.find(device);
    return at == opened.end() ? Opened{} : at->second;
}

} // namespace vksched

using vksched::find_opened;
using vksched::note;

extern "C" {

// Returns the first error on this thread since the last call, and forgets it.
EXPORT VkResult vksched_take_error()
{
    VkResult result = noted;
    noted = VK_SUCCESS;
    return result;
}

// Whether a device was opened with its features, or without as it would not open with them.
EXPORT int vksched_featured(VkDevice device)
{
    return find_opened(device).featured ? 1 : 0;
}

// Whether devices that this thread opens keep accesses beyond a buffer from the memory of others.
EXPORT void vksched_robust_access(int on)
{
    robust_access = on != 0;
}

// Whether a device was opened so.
EXPORT int vksched_robust(VkDevice device)
{
    return find_opened(device).robust ? 1 : 0;
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
    vksched::Opened made;
    if (physical != VK_NULL_HANDLE && !info->pEnabledFeatures && !info->pNext) {
        const vksched::Features features(physical, robust_access);
        std::vector<const char*> names(info->ppEnabledExtensionNames,
                                       info->ppEnabledExtensionNames + info->enabledExtensionCount);
        names.insert(names.end(), features.extensions.begin(), features.extensions.end());
        VkDeviceCreateInfo asked = *info;
        asked.pNext = &features.core;
        asked.enabledExtensionCount = static_cast<uint32_t>(names.size());
        asked.ppEnabledExtensionNames = names.data();
        result = __real_vkCreateDevice(physical, &asked, allocator, device);
        made.featured = result == VK_SUCCESS;
        made.robust = made.featured && features.core.features.robustBufferAccess == VK_TRUE;
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

} // extern "C"
