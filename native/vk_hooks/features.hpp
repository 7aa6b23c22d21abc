// Features beyond Vulkan 1.1 that kernels, copies or memory can use: described by the companion,
// and enabled when kp opens a device. None is required.
#pragma once

#include <vulkan/vulkan.h>

#include <string>
#include <vector>

#ifndef VK_KHR_cooperative_matrix // in headers from 1.3.255 on
#define VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME "VK_KHR_cooperative_matrix"
using VkComponentTypeKHR = int32_t;
using VkScopeKHR = int32_t;
struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType sType;
    void* pNext;
    uint32_t MSize, NSize, KSize;
    VkComponentTypeKHR AType, BType, CType, ResultType;
    VkBool32 saturatingAccumulation;
    VkScopeKHR scope;
};
struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType;
    void* pNext;
    VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
};
using PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR =
  VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, VkCooperativeMatrixPropertiesKHR*);
#endif

#ifndef VK_KHR_shader_bfloat16 // in headers from 1.4.311 on
#define VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME "VK_KHR_shader_bfloat16"
struct VkPhysicalDeviceShaderBfloat16FeaturesKHR {
    VkStructureType sType;
    void* pNext;
    VkBool32 shaderBFloat16Type, shaderBFloat16DotProduct, shaderBFloat16CooperativeMatrix;
};
#endif

#ifndef VK_VALVE_shader_mixed_float_dot_product // in headers from 1.4.344 on
#define VK_VALVE_SHADER_MIXED_FLOAT_DOT_PRODUCT_EXTENSION_NAME \
    "VK_VALVE_shader_mixed_float_dot_product"
struct VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE {
    VkStructureType sType;
    void* pNext;
    VkBool32 shaderMixedFloatDotProductFloat16AccFloat32, shaderMixedFloatDotProductFloat16AccFloat16,
      shaderMixedFloatDotProductBFloat16Acc, shaderMixedFloatDotProductFloat8AccFloat32;
};
#endif

namespace vksched {

std::vector<std::string> device_extensions(VkPhysicalDevice device);

// The supported features of a device of Vulkan 1.1 or newer, as a pNext chain for
// VkDeviceCreateInfo; only used ones are enabled. Not copyable: the structures point at each other.
struct Features {
    // robust: enable robustBufferAccess, which may cost speed.
    explicit Features(VkPhysicalDevice device, bool robust = false);
    Features(const Features&) = delete;
    Features& operator=(const Features&) = delete;

    VkPhysicalDeviceFeatures2 core{}; // first of the chain
    VkPhysicalDevice16BitStorageFeatures storage16{};
    VkPhysicalDevice8BitStorageFeatures storage8{};
    VkPhysicalDeviceShaderFloat16Int8Features arithmetic{};
    VkPhysicalDeviceShaderIntegerDotProductFeatures dot{};
    VkPhysicalDeviceVulkanMemoryModelFeatures memory_model{};
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT subgroup_sizes{};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices{};
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloat16{};
    VkPhysicalDeviceShaderMixedFloatDotProductFeaturesVALVE mixed_dot{};
    VkPhysicalDeviceTimelineSemaphoreFeatures timelines{};
    VkPhysicalDeviceHostQueryResetFeaturesEXT host_query_reset{};
    std::vector<const char*> extensions;
};

} // namespace vksched
