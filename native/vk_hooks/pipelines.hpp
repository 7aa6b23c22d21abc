// What all pipelines of a device share, as kp makes each thing anew for each Algorithm.
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

// Asks that subgroups of a stage have a size, where it is not 0, and are full, as the specification
// wants of cooperative matrices. The structure is for as long as the stage is used.
void require_subgroups(VkPipelineShaderStageCreateInfo& stage, uint32_t size,
                       VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT& required);

// Null where the interface is another kind of kp's, or memory is short: kp's own serves then.
VkPipelineLayout shared_layout(VkDevice device, Interface wanted);

// Null where the driver gives none.
VkPipelineCache shared_cache(VkDevice device);

// Whether a pipeline like the one described is there.
bool has_pipeline(VkDevice device, const VkComputePipelineCreateInfo& info, const std::string& code);

// Returns a pipeline like the one described: the one made before, or a new one. code: its SPIR-V.
VkResult take_pipeline(VkDevice device, VkComputePipelineCreateInfo info, const std::string& code,
                       VkPipelineCache own_cache, VkPipeline* pipeline);

// Gives back what take_pipeline returned; it is kept for the next that wants one like it. is_wanted:
// that one comes at once, with others like it, so none has to go.
void give_pipeline(VkDevice device, VkPipeline pipeline, bool is_wanted = false);

// Ends all of it, before the device ends.
void drop_shared(VkDevice device);

} // namespace vksched
