// Pipeline caches, layouts and pipelines that all Algorithms of a device share.
#pragma once

#include <vulkan/vulkan.h>

#include <string>

namespace vksched {

struct Interface {
    uint32_t buffers = 0; // storage buffers, bound in order
    uint32_t push_bytes = 0;
    bool operator<(const Interface& other) const
    {
        return buffers != other.buffers ? buffers < other.buffers : push_bytes < other.push_bytes;
    }
};

// Require a subgroup size of a stage, unless it is 0, with full subgroups, as cooperative matrices
// need. `required` must outlive the stage.
void require_subgroups(VkPipelineShaderStageCreateInfo& stage, uint32_t size,
                       VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT& required);

// Return a shared layout, or null if the interface is of another kind or memory is short: kp's own
// layout is used then.
VkPipelineLayout shared_layout(VkDevice device, Interface interface);

// Return the pipeline cache, or null if the driver has none.
VkPipelineCache shared_cache(VkDevice device);

// Return whether this pipeline exists.
bool has_pipeline(VkDevice device, const VkComputePipelineCreateInfo& info, const std::string& code);

// Return the cached pipeline of this description, or compile one. code: its SPIR-V.
VkResult acquire_pipeline(VkDevice device, VkComputePipelineCreateInfo info, const std::string& code,
                       VkPipelineCache kp_cache, VkPipeline* pipeline);

// Release a pipeline of acquire_pipeline. It stays in the cache. keep_idle: do not evict others,
// because their Algorithms follow soon.
void release_pipeline(VkDevice device, VkPipeline pipeline, bool keep_idle = false);

// Destroy all shared objects, before the device is destroyed.
void destroy_shared(VkDevice device);

} // namespace vksched
