// Checked Vulkan calls for Kompute's module. CMakeLists.txt compiles kp's sources so that vkX is
// __wrap_vkX; here __real_vkX is vkX itself.
//
// kp 0.9.0 ignores the results of most calls that create objects, and continues with handles that
// were never written: a full heap crashes the process. Here each call records its error, and a call
// with a null handle fails or does nothing. Nothing is thrown here (Vulkan-Hpp's functions are
// noexcept): the first later call whose result kp checks reports the failure, and the companion
// takes the recorded error. kp's constructors then throw without running a destructor, therefore
// the objects created so far are destroyed here.
//
//   devices.cpp      kp::Manager and kp::Sequence
//   buffers.cpp      kp::Tensor
//   algorithms.cpp   kp::Algorithm
#pragma once

#include "platform.hpp"

#include <vulkan/vulkan.h>

#include <cstdint>
#include <vector>

#define EXPORT VISIBLE
#define WRAP(result, name, ...)                                                                    \
    result __real_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__)

namespace vksched {

// Record an error. Only the first one counts: later ones follow from it.
VkResult record(VkResult result);

template<typename Handle>
VkResult record(VkResult result, Handle* handle)
{
    if (result < VK_SUCCESS) {
        *handle = VK_NULL_HANDLE;
    }
    return record(result);
}

// A device that kp opened, and its enabled features.
struct OpenDevice {
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    bool features_enabled = false; // with features beyond Vulkan 1.1
    bool robust = false; // robustBufferAccess
    bool timelines = false;
    bool host_query_reset = false;
    std::vector<uint32_t> families; // queue families
};

// Return an empty value if kp did not open the device, or closed it.
OpenDevice find_open_device(VkDevice device);

} // namespace vksched
