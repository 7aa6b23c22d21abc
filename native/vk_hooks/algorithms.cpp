// Hooks of kp::Algorithm: descriptor set and pipeline.
#include "vk_hooks/checked_calls.hpp"
#include "vk_hooks/pipelines.hpp"

#include <string>

using vksched::record;

namespace {

thread_local uint32_t required_subgroup_size = 0; // 0: any

struct PartialAlgorithm {
    VkDescriptorPool pool = VK_NULL_HANDLE;
    VkDescriptorSetLayout set_layout = VK_NULL_HANDLE;
    VkShaderModule shader = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkPipelineCache cache = VK_NULL_HANDLE;
    vksched::Interface interface;
    std::string code; // its SPIR-V
    bool has_set = false;
};
thread_local PartialAlgorithm algorithm;

void destroy_algorithm(VkDevice device)
{
    vkDestroyPipelineCache(device, algorithm.cache, nullptr);
    vkDestroyPipelineLayout(device, algorithm.layout, nullptr);
    vkDestroyShaderModule(device, algorithm.shader, nullptr);
    vkDestroyDescriptorSetLayout(device, algorithm.set_layout, nullptr);
    vkDestroyDescriptorPool(device, algorithm.pool, nullptr);
    algorithm = {};
}

// Return the number of bindings if each one is a storage buffer of a compute shader, in order; else
// 0.
uint32_t count_storage(const VkDescriptorSetLayoutCreateInfo* info)
{
    for (uint32_t i = 0; i < info->bindingCount; i++) {
        const VkDescriptorSetLayoutBinding& each = info->pBindings[i];
        if (each.binding != i || each.descriptorType != VK_DESCRIPTOR_TYPE_STORAGE_BUFFER ||
            each.descriptorCount != 1 || each.stageFlags != VK_SHADER_STAGE_COMPUTE_BIT) {
            return 0;
        }
    }
    return info->flags == 0 && info->pNext == nullptr ? info->bindingCount : 0;
}

// Read the size of the push constants. Return false for layouts that are not shared.
bool read_push_constants(const VkPipelineLayoutCreateInfo* info, uint32_t* bytes)
{
    *bytes = info->pushConstantRangeCount ? info->pPushConstantRanges[0].size : 0;
    return info->setLayoutCount == 1 && info->pushConstantRangeCount <= 1 &&
           (*bytes == 0 || (info->pPushConstantRanges[0].offset == 0 &&
                            info->pPushConstantRanges[0].stageFlags == VK_SHADER_STAGE_COMPUTE_BIT));
}

} // namespace

extern "C" {

// Set the required subgroup size of this thread's next pipelines; 0: any.
EXPORT void vksched_set_required_subgroup_size(uint32_t size)
{
    required_subgroup_size = size;
}

WRAP(VkResult, vkCreateDescriptorPool, VkDevice device, const VkDescriptorPoolCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkDescriptorPool* pool)
{
    VkResult result = record(__real_vkCreateDescriptorPool(device, info, allocator, pool), pool);
    algorithm = {};
    algorithm.pool = *pool;
    return result;
}

WRAP(VkResult, vkCreateDescriptorSetLayout, VkDevice device,
     const VkDescriptorSetLayoutCreateInfo* info, const VkAllocationCallbacks* allocator,
     VkDescriptorSetLayout* layout)
{
    VkResult result =
      record(__real_vkCreateDescriptorSetLayout(device, info, allocator, layout), layout);
    algorithm.set_layout = *layout;
    algorithm.interface.buffers = count_storage(info);
    return result;
}

WRAP(VkResult, vkAllocateDescriptorSets, VkDevice device, const VkDescriptorSetAllocateInfo* info,
     VkDescriptorSet* sets)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (info->descriptorPool != VK_NULL_HANDLE && info->pSetLayouts[0] != VK_NULL_HANDLE) {
        result = __real_vkAllocateDescriptorSets(device, info, sets);
    }
    algorithm.has_set = record(result, sets) == VK_SUCCESS;
    return result;
}

WRAP(void, vkUpdateDescriptorSets, VkDevice device, uint32_t write_count,
     const VkWriteDescriptorSet* writes, uint32_t copy_count, const VkCopyDescriptorSet* copies)
{
    if (write_count == 0 || writes[0].dstSet != VK_NULL_HANDLE) {
        __real_vkUpdateDescriptorSets(device, write_count, writes, copy_count, copies);
    }
}

WRAP(VkResult, vkCreateShaderModule, VkDevice device, const VkShaderModuleCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkShaderModule* shader)
{
    VkResult result = record(__real_vkCreateShaderModule(device, info, allocator, shader), shader);
    algorithm.shader = *shader;
    algorithm.code.assign(reinterpret_cast<const char*>(info->pCode), info->codeSize);
    return result;
}

WRAP(VkResult, vkCreatePipelineLayout, VkDevice device, const VkPipelineLayoutCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkPipelineLayout* layout)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (algorithm.set_layout != VK_NULL_HANDLE) {
        result = __real_vkCreatePipelineLayout(device, info, allocator, layout);
    }
    record(result, layout);
    algorithm.layout = *layout;
    if (!read_push_constants(info, &algorithm.interface.push_bytes)) {
        algorithm.interface.buffers = 0;
    }
    return result;
}

WRAP(VkResult, vkCreatePipelineCache, VkDevice device, const VkPipelineCacheCreateInfo* info,
     const VkAllocationCallbacks* allocator, VkPipelineCache* cache)
{
    VkResult result = record(__real_vkCreatePipelineCache(device, info, allocator, cache), cache);
    algorithm.cache = *cache;
    return result;
}

WRAP(VkResult, vkCreateComputePipelines, VkDevice device, VkPipelineCache cache, uint32_t count,
     const VkComputePipelineCreateInfo* infos, const VkAllocationCallbacks* allocator,
     VkPipeline* pipelines)
{
    VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
    if (algorithm.has_set && algorithm.shader != VK_NULL_HANDLE &&
        algorithm.layout != VK_NULL_HANDLE && algorithm.cache != VK_NULL_HANDLE) {
        VkComputePipelineCreateInfo like = *infos;
        VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT required{};
        vksched::require_subgroups(like.stage, required_subgroup_size, required);
        const VkPipelineLayout layout = vksched::shared_layout(device, algorithm.interface);
        if (layout == VK_NULL_HANDLE) {
            result = __real_vkCreateComputePipelines(device, cache, count, &like, allocator, pipelines);
        } else {
            like.layout = layout;
            result = vksched::acquire_pipeline(device, like, algorithm.code, cache, pipelines);
        }
    }
    if (record(result) != VK_SUCCESS) {
        destroy_algorithm(device);
    }
    algorithm = {};
    return result;
}

WRAP(void, vkDestroyPipeline, VkDevice device, VkPipeline pipeline,
     const VkAllocationCallbacks* allocator)
{
    (void)allocator; // null, as for the shared pipelines
    vksched::release_pipeline(device, pipeline);
}

} // extern "C"
