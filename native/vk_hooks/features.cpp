#include "vk_hooks/features.hpp"

#include <algorithm>

namespace vksched {

std::vector<std::string> device_extensions(VkPhysicalDevice device)
{
    uint32_t count = 0;
    std::vector<VkExtensionProperties> properties;
    VkResult result = VK_INCOMPLETE;
    while (result == VK_INCOMPLETE) {
        if (vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr) != VK_SUCCESS) {
            return {};
        }
        properties.resize(count);
        result = vkEnumerateDeviceExtensionProperties(device, nullptr, &count, properties.data());
    }
    properties.resize(result == VK_SUCCESS ? count : 0);
    std::vector<std::string> names;
    for (const VkExtensionProperties& extension : properties) {
        names.emplace_back(extension.extensionName);
    }
    return names;
}

Features::Features(VkPhysicalDevice device, bool robust)
{
    core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(device, &properties);
    if (properties.apiVersion < VK_API_VERSION_1_1) {
        return;
    }
    const std::vector<std::string> names = device_extensions(device);
    void** tail = &core.pNext;
    const auto link = [&](auto& part, uint32_t type) {
        part.sType = static_cast<VkStructureType>(type);
        *tail = &part;
        tail = &part.pNext;
    };
    const auto has = [&](const char* name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    const auto enable = [&](const char* name, auto& part, uint32_t type) {
        if (has(name)) {
            extensions.push_back(name);
            link(part, type);
        }
    };
    link(storage16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    enable(VK_KHR_8BIT_STORAGE_EXTENSION_NAME, storage8,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES);
    enable(VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME, arithmetic,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
    enable(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME, dot,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
    enable(VK_KHR_VULKAN_MEMORY_MODEL_EXTENSION_NAME, memory_model,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
    enable(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME, subgroup_sizes,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT);
    enable(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, matrices, 1000506000);
    enable(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME, bfloat16, 1000141000);
    enable(VK_VALVE_SHADER_MIXED_FLOAT_DOT_PRODUCT_EXTENSION_NAME, mixed_dot, 1000673000);
    enable(VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME, timelines,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
    enable(VK_EXT_HOST_QUERY_RESET_EXTENSION_NAME, host_query_reset,
         VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_HOST_QUERY_RESET_FEATURES_EXT);
    vkGetPhysicalDeviceFeatures2(device, &core);
    for (const char* name :
         { VK_EXT_MEMORY_BUDGET_EXTENSION_NAME, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME }) {
        if (has(name)) {
            extensions.push_back(name);
        }
    }

    // Features that no kernel uses stay disabled: some of them cost speed.
    const VkPhysicalDeviceFeatures supported = core.features;
    core.features = {};
    core.features.shaderInt64 = supported.shaderInt64;
    core.features.shaderInt16 = supported.shaderInt16;
    core.features.robustBufferAccess = robust ? supported.robustBufferAccess : VK_FALSE;
    storage16.uniformAndStorageBuffer16BitAccess = VK_FALSE;
    storage16.storagePushConstant16 = VK_FALSE;
    storage16.storageInputOutput16 = VK_FALSE;
    storage8.uniformAndStorageBuffer8BitAccess = VK_FALSE;
    storage8.storagePushConstant8 = VK_FALSE;
    memory_model.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
    mixed_dot.shaderMixedFloatDotProductFloat16AccFloat16 = VK_FALSE;
    mixed_dot.shaderMixedFloatDotProductBFloat16Acc = VK_FALSE;
    mixed_dot.shaderMixedFloatDotProductFloat8AccFloat32 = VK_FALSE;
    matrices.cooperativeMatrixRobustBufferAccess =
      robust ? matrices.cooperativeMatrixRobustBufferAccess : VK_FALSE;
}

} // namespace vksched
