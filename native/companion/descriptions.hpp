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

// Features beyond Vulkan 1.1; each name is a field of Limits.
py::dict describe_features(VkInstance instance, VkPhysicalDevice device,
                           const std::vector<std::string>& extensions);

} // namespace companion
