// Heaps, limits and core count of a device.
#include "companion/descriptions.hpp"

namespace companion {

py::list describe_heaps(VkPhysicalDevice device, bool has_budget)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    VkPhysicalDeviceMemoryProperties2 memory{};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    if (has_budget) {
        memory.pNext = &budget;
        vkGetPhysicalDeviceMemoryProperties2(device, &memory);
    } else {
        vkGetPhysicalDeviceMemoryProperties(device, &memory.memoryProperties);
    }
    py::list heaps;
    for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
        const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
        py::dict entry;
        entry["size_bytes"] = heap.size;
        entry["device_local"] = (heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0;
        entry["budget_bytes"] = py::none();
        entry["usage_bytes"] = py::none();
        if (has_budget && budget.heapBudget[i] > 0) {
            entry["budget_bytes"] = budget.heapBudget[i];
            entry["usage_bytes"] = budget.heapUsage[i];
        }
        heaps.append(entry);
    }
    return heaps;
}

py::dict describe_limits(const VkPhysicalDeviceLimits& limits)
{
    py::dict entry;
#define LIMIT(name) entry[#name] = limits.name;
#define LIMIT3(name)                                                                               \
    entry[#name] = py::make_tuple(limits.name[0], limits.name[1], limits.name[2]);
    LIMIT(maxComputeWorkGroupInvocations)
    LIMIT3(maxComputeWorkGroupSize)
    LIMIT3(maxComputeWorkGroupCount)
    LIMIT(maxComputeSharedMemorySize)
    LIMIT(maxPushConstantsSize)
    LIMIT(maxPerStageDescriptorStorageBuffers)
    LIMIT(maxPerStageResources)
    LIMIT(maxDescriptorSetStorageBuffers)
    LIMIT(maxBoundDescriptorSets)
    LIMIT(maxStorageBufferRange)
    LIMIT(maxMemoryAllocationCount)
    LIMIT(minMemoryMapAlignment)
    LIMIT(minStorageBufferOffsetAlignment)
    LIMIT(nonCoherentAtomSize)
    LIMIT(bufferImageGranularity)
    LIMIT(optimalBufferCopyOffsetAlignment)
#undef LIMIT
#undef LIMIT3
    entry["timestampComputeAndGraphics"] = limits.timestampComputeAndGraphics == VK_TRUE;
    return entry;
}

uint32_t core_count(VkPhysicalDevice device, const std::vector<std::string>& extensions)
{
    if (has(extensions, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)) {
        return properties_of<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV>(
                 device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV)
          .shaderSMCount;
    }
    if (has(extensions, VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME)) {
        const auto cores = properties_of<VkPhysicalDeviceShaderCoreProperties2AMD>(
          device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD);
        if (cores.activeComputeUnitCount > 0) {
            return cores.activeComputeUnitCount;
        }
    }
    if (has(extensions, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME)) {
        const auto cores = properties_of<VkPhysicalDeviceShaderCorePropertiesAMD>(
          device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);
        return cores.shaderEngineCount * cores.shaderArraysPerEngineCount *
               cores.computeUnitsPerShaderArray;
    }
    return 0;
}

} // namespace companion
