// Compilation of pipelines in advance. The companion finds the function by its name.
#include "vk_hooks/pipelines.hpp"
#include "platform.hpp"

#include <string>
#include <vector>

extern "C" VkResult __real_vkCreateShaderModule(VkDevice, const VkShaderModuleCreateInfo*,
                                                const VkAllocationCallbacks*, VkShaderModule*);

// Compile a pipeline before an Algorithm asks for it, on any thread. It is idle until then.
// constants: 32-bit words of specialisation ids 0, 1, ... subgroup: required subgroup size; 0: any.
extern "C" VISIBLE VkResult vksched_compile_pipeline(VkDevice device, const uint32_t* code,
                                                  size_t code_bytes, const uint32_t* constants,
                                                  uint32_t constant_count, uint32_t buffers,
                                                  uint32_t push_bytes, uint32_t subgroup)
{
    const VkPipelineLayout layout = vksched::shared_layout(device, { buffers, push_bytes });
    if (layout == VK_NULL_HANDLE) {
        return VK_SUCCESS; // it will be compiled with the Algorithm
    }
    std::vector<VkSpecializationMapEntry> entries;
    for (uint32_t i = 0; i < constant_count; i++) {
        entries.push_back({ i, 4 * i, 4 });
    }
    VkSpecializationInfo values{ constant_count, entries.data(), 4 * size_t{ constant_count },
                                 constants };
    VkShaderModuleCreateInfo module_info{};
    module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    module_info.codeSize = code_bytes;
    module_info.pCode = code;
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.layout = layout;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &values;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT required{};
    vksched::require_subgroups(info.stage, subgroup, required);
    const std::string text(reinterpret_cast<const char*>(code), code_bytes);
    if (vksched::has_pipeline(device, info, text)) {
        return VK_SUCCESS;
    }
    VkResult result =
      __real_vkCreateShaderModule(device, &module_info, nullptr, &info.stage.module);
    if (result != VK_SUCCESS) {
        return result;
    }
    VkPipeline pipeline = VK_NULL_HANDLE;
    result = vksched::acquire_pipeline(device, info, text, VK_NULL_HANDLE, &pipeline);
    vkDestroyShaderModule(device, info.stage.module, nullptr);
    if (result == VK_SUCCESS) {
        vksched::release_pipeline(device, pipeline, true);
    }
    return result;
}
