// Host memory that a device reads in place (VK_EXT_external_memory_host).
#pragma once

#include "companion/companion.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace companion {

// Host pages as a buffer to copy from. The owner keeps the memory alive and unchanged until the
// device has read it. Throws if the driver refuses the pages.
class HostImport {
  public:
    // address, size: multiples of import_alignment (describe_devices).
    HostImport(std::shared_ptr<kp::Manager> manager, uint64_t address, uint64_t size)
      : manager_(std::move(manager)), size_(size)
    {
        require_open(*manager_);
        device_ = raw<VkDevice>(get(*manager_, ManagerDevice{}));
        try {
            make(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
        } catch (...) {
            drop(); // no destructor runs after a throw
            throw;
        }
    }

    HostImport(const HostImport&) = delete;
    HostImport& operator=(const HostImport&) = delete;

    ~HostImport()
    {
        if (raw<VkDevice>(get(*manager_, ManagerDevice{})) == device_) {
            drop();
        }
    }

    VkDevice device() const { return device_; }
    VkBuffer buffer() const { return buffer_; }
    uint64_t size() const { return size_; }

  private:
    void make(void* pointer)
    {
        const auto get_properties = reinterpret_cast<PFN_vkGetMemoryHostPointerPropertiesEXT>(
          vkGetDeviceProcAddr(device_, "vkGetMemoryHostPointerPropertiesEXT"));
        if (get_properties == nullptr) {
            throw Failure("vkGetMemoryHostPointerPropertiesEXT", VK_ERROR_EXTENSION_NOT_PRESENT);
        }
        const auto handle_type = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
        VkMemoryHostPointerPropertiesEXT pointer_properties{};
        pointer_properties.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
        check(get_properties(device_, handle_type, pointer, &pointer_properties), "vkGetMemoryHostPointerPropertiesEXT");

        VkExternalMemoryBufferCreateInfo external{};
        external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
        external.handleTypes = handle_type;
        VkBufferCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
        info.pNext = &external;
        info.size = size_;
        info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
        std::vector<uint32_t> families = get(*manager_, ManagerFamilies{});
        std::sort(families.begin(), families.end());
        families.erase(std::unique(families.begin(), families.end()), families.end());
        if (families.size() > 1) {
            info.sharingMode = VK_SHARING_MODE_CONCURRENT;
            info.queueFamilyIndexCount = static_cast<uint32_t>(families.size());
            info.pQueueFamilyIndices = families.data();
        }
        check(vkCreateBuffer(device_, &info, nullptr, &buffer_), "vkCreateBuffer");

        VkMemoryRequirements requirements{};
        vkGetBufferMemoryRequirements(device_, buffer_, &requirements);
        const uint32_t type = coherent_type(requirements.memoryTypeBits & pointer_properties.memoryTypeBits);
        if (type == VK_MAX_MEMORY_TYPES || requirements.size > size_) {
            throw Failure("vkGetBufferMemoryRequirements", VK_ERROR_INVALID_EXTERNAL_HANDLE);
        }
        VkImportMemoryHostPointerInfoEXT import{};
        import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
        import.handleType = handle_type;
        import.pHostPointer = pointer;
        VkMemoryAllocateInfo memory{};
        memory.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
        memory.pNext = &import;
        memory.allocationSize = size_;
        memory.memoryTypeIndex = type;
        check(vkAllocateMemory(device_, &memory, nullptr, &memory_), "vkAllocateMemory");
        check(vkBindBufferMemory(device_, buffer_, memory_, 0), "vkBindBufferMemory");
    }

    // Return the first host-visible, host-coherent type of `types`, or VK_MAX_MEMORY_TYPES.
    uint32_t coherent_type(uint32_t types) const
    {
        const VkMemoryPropertyFlags wanted =
          VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
        VkPhysicalDeviceMemoryProperties memory{};
        vkGetPhysicalDeviceMemoryProperties(
          raw<VkPhysicalDevice>(get(*manager_, ManagerPhysical{})), &memory);
        for (uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
            const VkMemoryPropertyFlags flags = memory.memoryTypes[type].propertyFlags;
            if ((types & (1u << type)) != 0 && (flags & wanted) == wanted) {
                return type;
            }
        }
        return VK_MAX_MEMORY_TYPES;
    }

    void drop()
    {
        vkDestroyBuffer(device_, buffer_, nullptr);
        vkFreeMemory(device_, memory_, nullptr);
    }

    std::shared_ptr<kp::Manager> manager_;
    uint64_t size_;
    VkDevice device_ = VK_NULL_HANDLE;
    VkBuffer buffer_ = VK_NULL_HANDLE;
    VkDeviceMemory memory_ = VK_NULL_HANDLE;
};

} // namespace companion
