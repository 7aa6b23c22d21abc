// Features beyond Vulkan 1.1: cooperative matrices, integer dot products, subgroup sizes, types.
#include "vk_hooks/features.hpp"
#include "companion/descriptions.hpp"

#include <algorithm>

namespace companion {
namespace {

// Return a cooperative matrix shape as text, as "float16*float16+float32 16x16x16": types of A, B
// and the accumulator, M, N and K. Return "" for shapes that no kernel uses.
std::string coopmat_text(const VkCooperativeMatrixPropertiesKHR& shape)
{
    constexpr VkScopeKHR SUBGROUP = static_cast<VkScopeKHR>(3);
    const auto type = [](VkComponentTypeKHR code) -> std::string {
        switch (static_cast<int>(code)) {
            case 0:
                return "float16";
            case 1:
                return "float32";
            case 3:
                return "int8";
            case 5:
                return "int32";
            case 7:
                return "uint8";
            case 9:
                return "uint32";
            case 1000141000:
                return "bfloat16";
            default:
                return "";
        }
    };
    const std::string a = type(shape.AType), b = type(shape.BType), sum = type(shape.CType);
    const bool useful = !a.empty() && !b.empty() && !sum.empty() && shape.scope == SUBGROUP &&
                        shape.CType == shape.ResultType && !shape.saturatingAccumulation;
    const auto number = [](uint32_t value) { return std::to_string(value); };
    return useful ? a + "*" + b + "+" + sum + " " + number(shape.MSize) + "x" +
                      number(shape.NSize) + "x" + number(shape.KSize)
                  : "";
}

py::list describe_coopmats(VkInstance instance, VkPhysicalDevice device)
{
    py::list found;
    const auto get_properties = reinterpret_cast<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
      vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
    uint32_t count = 0;
    if (get_properties == nullptr || get_properties(device, &count, nullptr) != VK_SUCCESS) {
        return found;
    }
    VkCooperativeMatrixPropertiesKHR empty{};
    empty.sType = static_cast<VkStructureType>(1000506001);
    std::vector<VkCooperativeMatrixPropertiesKHR> shapes(count, empty);
    if (get_properties(device, &count, shapes.data()) < VK_SUCCESS) {
        return found;
    }
    shapes.resize(std::min<size_t>(count, shapes.size()));
    for (const VkCooperativeMatrixPropertiesKHR& shape : shapes) {
        const std::string text = coopmat_text(shape);
        if (!text.empty() && !found.contains(text)) {
            found.append(text);
        }
    }
    return found;
}

// Return whether the device reports a 4 x 8-bit dot product as accelerated.
bool has_accelerated_dot(VkPhysicalDevice device)
{
    const auto dot = properties_of<VkPhysicalDeviceShaderIntegerDotProductProperties>(
      device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
    return dot.integerDotProduct4x8BitPackedSignedAccelerated == VK_TRUE;
}

// Return the subgroup sizes, powers of two, that a compute kernel may require.
std::vector<uint32_t> required_subgroup_sizes(VkPhysicalDevice device)
{
    const auto sizes = properties_of<VkPhysicalDeviceSubgroupSizeControlPropertiesEXT>(
      device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT);
    std::vector<uint32_t> found;
    if (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) {
        for (uint32_t size = std::max(1u, sizes.minSubgroupSize); size <= sizes.maxSubgroupSize;
             size *= 2) {
            found.push_back(size);
        }
    }
    return found;
}

} // namespace

py::dict describe_features(VkInstance instance, VkPhysicalDevice device,
                           const std::vector<std::string>& extensions)
{
    const vksched::Features found(device);
    py::dict entry;
    entry["int64"] = found.core.features.shaderInt64 == VK_TRUE;
    entry["int16"] = found.core.features.shaderInt16 == VK_TRUE;
    entry["float16"] = found.arithmetic.shaderFloat16 == VK_TRUE;
    entry["int8"] = found.arithmetic.shaderInt8 == VK_TRUE;
    entry["storage16"] = found.storage16.storageBuffer16BitAccess == VK_TRUE;
    entry["storage8"] = found.storage8.storageBuffer8BitAccess == VK_TRUE;
    const bool dots = found.dot.shaderIntegerDotProduct == VK_TRUE;
    entry["integer_dot"] = dots;
    entry["integer_dot_fast"] = dots && has_accelerated_dot(device);
    entry["mixed_dot"] = found.mixed_dot.shaderMixedFloatDotProductFloat16AccFloat32 == VK_TRUE;
    entry["bfloat16"] = found.bfloat16.shaderBFloat16Type == VK_TRUE;
    const bool memory_model = found.memory_model.vulkanMemoryModel == VK_TRUE;
    entry["memory_model"] =
      memory_model && found.memory_model.vulkanMemoryModelDeviceScope == VK_TRUE;
    const bool matrices = found.matrices.cooperativeMatrix == VK_TRUE && memory_model;
    entry["matrices"] = matrices ? describe_coopmats(instance, device) : py::list();
    const bool sizes = found.subgroup_sizes.subgroupSizeControl == VK_TRUE &&
                       found.subgroup_sizes.computeFullSubgroups == VK_TRUE;
    entry["subgroup_sizes"] = sizes ? required_subgroup_sizes(device) : std::vector<uint32_t>{};
    entry["memory_budget"] = has(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    entry["host_import"] = has(extensions, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    return entry;
}

} // namespace companion
