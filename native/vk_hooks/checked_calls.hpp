// Checked Vulkan calls for Kompute's module: CMakeLists.txt compiles kp's sources so that they call
// __wrap_vkX where they say vkX, and here __real_vkX is vkX itself.
//
// kp 0.9.0 ignores the results of most calls that create something and goes on with handles that
// were never written: a full heap ends the process. Here each of them notes its error, and a call
// that would get a null handle fails or does nothing. Nothing is thrown here (Vulkan-Hpp's functions
// are noexcept): the first later call whose result kp does look at reports the failure, and the
// companion takes the noted result. Because kp's constructors throw then, without a destructor, what
// they had made so far is destroyed here.
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

// The first error counts: those after it follow from it.
VkResult note(VkResult result);

template<typename Handle>
VkResult note(VkResult result, Handle* handle)
{
    if (result < VK_SUCCESS) {
        *handle = VK_NULL_HANDLE;
    }
    return note(result);
}

// A device that kp opened.
struct Opened {
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    bool featured = false;  // with what it has beyond Vulkan 1.1
    bool robust = false; // keeps accesses beyond a buffer from the memory of others
    bool timelines = false; // with timeline semaphores
    bool host_query_reset = false; // the host may reset queries
    std::vector<uint32_t> families; // of its queues
};

// Of one that it did not open, or closed, all is null.
Opened find_opened(VkDevice device);

} // namespace vksched
