// Hooks of kp::Manager and kp::Sequence: instance, device, command pool and command buffer.
#include "vk_hooks/checked_calls.hpp"
#include "vk_hooks/features.hpp"
#include "vk_hooks/pipelines.hpp"

#include <map>
#include <mutex>

namespace {

thread_local VkResult first_error = VK_SUCCESS;
thread_local bool robust_access = false;

std::mutex open_devices_mutex;
std::map<VkDevice, vksched::OpenDevice> open_devices;

} // namespace

namespace vksched {

VkResult record(VkResult result)
{
    if (result < VK_SUCCESS && first_error == VK_SUCCESS) {
        first_error = result;
    }
    return result;
}

OpenDevice find_open_device(VkDevice device)
{
    std::lock_guard<std::mutex> lock(open_devices_mutex);
    const auto at = open_devices.find(device);
    return at == open_devices.end() ? OpenDevice{} : at->second;
}

} // namespace vksched

using vksched::find_open_device;
using vksched::record;

extern "C" {

// Return the first error on this thread since the last call, and clear it.
EXPORT VkResult vksched_take_error()
{
    VkResult result = first_error;
    first_error = VK_SUCCESS;
    return result;
}

// Return whether a device was opened with features beyond Vulkan 1.1.
EXPORT int vksched_features_enabled(VkDevice device)
{
    return find_open_device(device).features_enabled ? 1 : 0;
}

// Set whether devices that this thread opens enable robustBufferAccess.
EXPORT void vksched_set_robust_access(int on)
{
    robust_access = on != 0;
}

// Return whether a device was opened with robustBufferAccess.
EXPORT int vksched_robust_access_enabled(VkDevice device)
{
    return find_open_device(device).robust ? 1 : 0;
}

// Return whether a device was opened with timeline semaphores.
EXPORT int vksched_timeline_semaphores_enabled(VkDevice device)
{
    return find_open_device(device).timelines ? 1 : 0;
}

// Return whether a device was opened with host query reset.
EXPORT int vksched_host_query_reset_enabled(VkDevice device)
{
    return find_open_device(device).host_query_reset ? 1 : 0;
}

// ---- instance and device: kp::Manager

WRAP(VkResult, vkCreateInstance, const VkInstanceCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkInstance* instance)
{
    return record(__real_vkCreateInstance(info, allocator, instance), instance);
}

WRAP(VkResult, vkEnumeratePhysicalDevices, VkInstance instance, uint32_t* count,
     VkPhysicalDevice* devices)
{
    if (instance == VK_NULL_HANDLE) {
        return record(VK_ERROR_INITIALIZATION_FAILED);
    }
    return record(__real_vkEnumeratePhysicalDevices(instance, count, devices));
}

WRAP(VkResult, vkCreateDevice, VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkDevice* device)
{
    // kp enables no features. If a device does not open with the features that it reports, it is
    // opened without them.
    VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
    vksched::OpenDevice opened;
    if (physical != VK_NULL_HANDLE && !info->pEnabledFeatures && !info->pNext) {
        const vksched::Features features(physical, robust_access);
        std::vector<const char*> names(info->ppEnabledExtensionNames,
                                       info->ppEnabledExtensionNames + info->enabledExtensionCount);
        names.insert(names.end(), features.extensions.begin(), features.extensions.end());
        VkDeviceCreateInfo device_info = *info;
        device_info.pNext = &features.core;
        device_info.enabledExtensionCount = static_cast<uint32_t>(names.size());
        device_info.ppEnabledExtensionNames = names.data();
        result = __real_vkCreateDevice(physical, &device_info, allocator, device);
        opened.features_enabled = result == VK_SUCCESS;
        opened.robust = opened.features_enabled && features.core.features.robustBufferAccess == VK_TRUE;
        opened.timelines = opened.features_enabled && features.timelines.timelineSemaphore == VK_TRUE;
        opened.host_query_reset = opened.features_enabled && features.host_query_reset.hostQueryReset == VK_TRUE;
    }
    if (result != VK_SUCCESS) {
        result = __real_vkCreateDevice(physical, info, allocator, device);
    }
    record(result, device);
    if (result == VK_SUCCESS) {
        std::lock_guard<std::mutex> lock(open_devices_mutex);
        opened.physical = physical;
        for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
            opened.families.push_back(info->pQueueCreateInfos[i].queueFamilyIndex);
        }
        open_devices[*device] = opened;
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
        vksched::destroy_shared(device);
        {
            std::lock_guard<std::mutex> lock(open_devices_mutex);
            open_devices.erase(device);
        }
        __real_vkDestroyDevice(device, allocator);
    }
}

// ---- command pool and buffer: kp::Sequence

WRAP(VkResult, vkCreateCommandPool, VkDevice device, const VkCommandPoolCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkCommandPool* pool)
{
    return record(__real_vkCreateCommandPool(device, info, allocator, pool), pool);
}

WRAP(VkResult, vkAllocateCommandBuffers, VkDevice device, const VkCommandBufferAllocateInfo* info,
     VkCommandBuffer* buffers)
{
    if (info->commandPool == VK_NULL_HANDLE) {
        return record(VK_ERROR_OUT_OF_HOST_MEMORY, buffers);
    }
    return record(__real_vkAllocateCommandBuffers(device, info, buffers), buffers);
}

WRAP(void, vkFreeCommandBuffers, VkDevice device, VkCommandPool pool, uint32_t count,
     const VkCommandBuffer* buffers)
{
    if (pool != VK_NULL_HANDLE) {
        __real_vkFreeCommandBuffers(device, pool, count, buffers);
    }
}

} // extern "C"
