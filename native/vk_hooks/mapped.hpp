// Checks of mapped memory, for Kompute's module and for the companion.
#pragma once

#include <vulkan/vulkan.h>

#include <cstdint>

namespace vksched {

// Return the result of vkMapMemory, or an error if the address is invalid: llvmpipe of Mesa 25
// returns VK_SUCCESS and mmap's -1 if the process may have no more memory. The address is null on
// errors.
inline VkResult check_mapped(VkResult result, void** data)
{
    if (result == VK_SUCCESS &&
        (*data == nullptr || reinterpret_cast<std::intptr_t>(*data) == -1)) {
        result = VK_ERROR_MEMORY_MAP_FAILED;
    }
    if (result != VK_SUCCESS) {
        *data = nullptr;
    }
    return result;
}

} // namespace vksched
