// The parts of a device's description.
#pragma once

#include "companion/companion.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace companion {

inline bool has(const std::vector<std::string>& names, const char* name)
{
    return std::find(names.begin(), names.end(), name) != names.end();
}

py::list describe_heaps(VkPhysicalDevice device, bool has_budget);

py::dict describe_limits(const VkPhysicalDeviceLimits& limits);

// Streaming multiprocessors of NVIDIA, compute units of AMD; 0 if the driver does not report them.
uint32_t core_count(VkPhysicalDevice device, const std::vector<std::string>& extensions);

// Features beyond Vulkan 1.1; each name is a field of Limits.
py::dict describe_features(VkInstance instance, VkPhysicalDevice device,
                           const std::vector<std::string>& extensions);

template<typename Properties>
Properties properties_of(VkPhysicalDevice device, VkStructureType type)
{
    Properties found{};
    found.sType = type;
    VkPhysicalDeviceProperties2 all{};
    all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    all.pNext = &found;
    vkGetPhysicalDeviceProperties2(device, &all);
    found.pNext = nullptr;
    return found;
}

} // namespace companion
