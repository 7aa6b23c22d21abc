// Host memory that a device copies from where it lies.
#pragma once

#include "companion/companion.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace companion {

// Pages of the host's as a buffer to copy from. Whoever makes one keeps what lies there alive, and
// unchanged, until the device has read it. Raises where the driver does not take them.
class Imported {
  public:
    // address, size: multiples of what the device asks for (describe_devices)
    Imported(std::shared_ptr<kp::Manager> manager, uint64_t address, uint64_t size)
      : manager_(std::move(manager)), size_(size)
    {
        require_open(*manager_);
        device_ = raw<VkDevice>(get(*manager_, ManagerDevice{}));
        try {
            make(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
        } catch (...) {
            drop(); // no destructor runs after this
            throw;
        }
    }

    Imported(const Imported&) = delete;
    Imported& operator=(const Imported&) = delete;

    ~Imported()
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
        const auto ask = reinterpret_cast<PFN_vkGetMemoryHostPointerPropertiesEXT>(
          vkGetDeviceProcAddr(device_, "vkGetMemoryHostPointerPropertiesEXT"));
        if (ask == nullptr) {
            throw Failure("vkGetMemoryHostPointerPropertiesEXT", VK_ERROR_EXTENSION_NOT_PRESENT);
        }
        const auto kind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
        VkMemoryHostPointerPropertiesEXT there{};
        there.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
        check(ask(device_, kind, pointer, &there), "vkGetMemoryHostPointerPropertiesEXT");

        VkExternalMemoryBufferCreateInfo external{};
        external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
        external.handleTypes = kind;
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

        VkMemoryRequirements needs{};
        vkGetBufferMemoryRequirements(device_, buffer_, &needs);
        const uint32_t type = coherent_type(needs.memoryTypeBits & there.memoryTypeBits);
        if (type == VK_MAX_MEMORY_TYPES || needs.size > size_) {
            throw Failure("vkGetBufferMemoryRequirements", VK_ERROR_INVALID_EXTERNAL_HANDLE);
        }
        VkImportMemoryHostPointerInfoEXT import{};
        import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
        import.handleType = kind;
        import.pHostPointer = pointer;
        VkMemoryAllocateInfo memory{};
        memory.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
        memory.pNext = &import;
        memory.allocationSize = size_;
        memory.memoryTypeIndex = type;
        check(vkAllocateMemory(device_, &memory, nullptr, &memory_), "vkAllocateMemory");
        check(vkBindBufferMemory(device_, buffer_, memory_, 0), "vkBindBufferMemory");
    }

    // The first of some memory types in which the device sees what the host has written, without a
    // flush; VK_MAX_MEMORY_TYPES where there is none.
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
