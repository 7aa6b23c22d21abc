// What a driver says of mapped memory, checked; for Kompute's module and for the companion.
#pragma once

#include <vulkan/vulkan.h>

#include <cstdint>

namespace vksched {

// Returns the result of vkMapMemory, an error where the address is none: llvmpipe of Mesa 25 answers
// VK_SUCCESS and mmap's -1 when the process may have no more memory. The address is null then.
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
