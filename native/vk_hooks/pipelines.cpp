// One pipeline cache for each device, one layout for each interface, and one pipeline for each
// shader with its constants, shared by all Algorithms: kp creates new ones for each Algorithm, and
// drivers compile again.
//
//   Algorithm ---> acquire_pipeline(shader, constants, interface) --> in use --> idle --> destroyed
//                        ^--------------- cached ------------------------'  (oldest first)
#include "vk_hooks/pipelines.hpp"
#include "platform.hpp"

#include <list>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#define EXPORT extern "C" VISIBLE
#define REAL(result, name, ...) result __real_##name(__VA_ARGS__)

extern "C" {
REAL(VkResult, vkCreatePipelineCache, VkDevice, const VkPipelineCacheCreateInfo*,
     const VkAllocationCallbacks*, VkPipelineCache*);
REAL(VkResult, vkCreateDescriptorSetLayout, VkDevice, const VkDescriptorSetLayoutCreateInfo*,
     const VkAllocationCallbacks*, VkDescriptorSetLayout*);
REAL(VkResult, vkCreatePipelineLayout, VkDevice, const VkPipelineLayoutCreateInfo*,
     const VkAllocationCallbacks*, VkPipelineLayout*);
REAL(VkResult, vkCreateComputePipelines, VkDevice, VkPipelineCache, uint32_t,
     const VkComputePipelineCreateInfo*, const VkAllocationCallbacks*, VkPipeline*);
REAL(void, vkDestroyPipeline, VkDevice, VkPipeline, const VkAllocationCallbacks*);
}

namespace vksched {
namespace {

// Maximum number of idle pipelines of a device; those of live graphs do not count. Software drivers
// need 0.3 to 2 MiB for each.
size_t max_idle = 128;

struct Layout {
    VkDescriptorSetLayout set = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
};

// Shader, specialisation constants, subgroup size (0: any) and layout: everything that determines
// the compiled code.
using Key = std::tuple<std::string, std::string, uint32_t, VkPipelineLayout>;
using PipelinesByKey = std::map<Key, VkPipeline>;

struct Pipeline {
    PipelinesByKey::iterator by_key;
    uint32_t users = 0;
    std::list<VkPipeline>::iterator idle; // if there are no users
};

struct Shared {
    VkPipelineCache cache = VK_NULL_HANDLE;
    bool has_cache = false; // requested; the driver may have failed
    std::map<Interface, Layout> layouts;
    PipelinesByKey by_key;
    std::map<VkPipeline, Pipeline> pipelines;
    std::list<VkPipeline> idle; // least recently used first
    size_t compiled = 0;
};

std::mutex mutex; // guards devices and max_idle; never held during compilation
std::map<VkDevice, Shared> devices;

void destroy_layout(VkDevice device, const Layout& shared)
{
    vkDestroyPipelineLayout(device, shared.layout, nullptr);
    vkDestroyDescriptorSetLayout(device, shared.set, nullptr);
}

Layout make_layout(VkDevice device, Interface interface)
{
    std::vector<VkDescriptorSetLayoutBinding> bindings(interface.buffers);
    for (uint32_t i = 0; i < interface.buffers; i++) {
        bindings[i].binding = i;
        bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        bindings[i].descriptorCount = 1;
        bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    VkDescriptorSetLayoutCreateInfo set_info{};
    set_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set_info.bindingCount = interface.buffers;
    set_info.pBindings = bindings.data();
    VkPushConstantRange range{ VK_SHADER_STAGE_COMPUTE_BIT, 0, interface.push_bytes };
    Layout result;
    if (__real_vkCreateDescriptorSetLayout(device, &set_info, nullptr, &result.set) != VK_SUCCESS) {
        return {};
    }
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.setLayoutCount = 1;
    info.pSetLayouts = &result.set;
    info.pushConstantRangeCount = interface.push_bytes ? 1 : 0;
    info.pPushConstantRanges = &range;
    if (__real_vkCreatePipelineLayout(device, &info, nullptr, &result.layout) != VK_SUCCESS) {
        result.layout = VK_NULL_HANDLE;
        destroy_layout(device, result);
        return {};
    }
    return result;
}

// With the mutex held: return the cache, created on first use.
VkPipelineCache open_cache(VkDevice device, Shared& shared, size_t size, const void* data)
{
    if (!shared.has_cache) {
        VkPipelineCacheCreateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
        info.initialDataSize = size;
        info.pInitialData = data;
        if (__real_vkCreatePipelineCache(device, &info, nullptr, &shared.cache) != VK_SUCCESS) {
            shared.cache = VK_NULL_HANDLE;
        }
        shared.has_cache = true;
    }
    return shared.cache;
}

// With the mutex held: add a user to an existing pipeline.
void add_user(Shared& shared, VkPipeline pipeline)
{
    Pipeline& at = shared.pipelines.at(pipeline);
    if (at.users++ == 0) {
        shared.idle.erase(at.idle);
    }
}

std::string text(const VkSpecializationInfo* constants)
{
    if (constants == nullptr) {
        return {};
    }
    std::string all(reinterpret_cast<const char*>(constants->pMapEntries),
                    constants->mapEntryCount * sizeof(VkSpecializationMapEntry));
    all.append(static_cast<const char*>(constants->pData), constants->dataSize);
    return all;
}

Key pipeline_key(const VkComputePipelineCreateInfo& info, const std::string& code)
{
    const auto* size =
      static_cast<const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT*>(info.stage.pNext);
    return { code, text(info.stage.pSpecializationInfo), size ? size->requiredSubgroupSize : 0,
             info.layout };
}

} // namespace

void require_subgroups(VkPipelineShaderStageCreateInfo& stage, uint32_t size,
                       VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT& required)
{
    required.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT;
    required.requiredSubgroupSize = size;
    stage.pNext = size ? &required : nullptr;
    stage.flags |= size ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0;
}

VkPipelineLayout shared_layout(VkDevice device, Interface interface)
{
    if (interface.buffers == 0) {
        return VK_NULL_HANDLE;
    }
    std::lock_guard<std::mutex> lock(mutex);
    auto& layouts = devices[device].layouts;
    auto at = layouts.find(interface);
    if (at == layouts.end()) {
        Layout created = make_layout(device, interface);
        if (created.layout == VK_NULL_HANDLE) {
            return VK_NULL_HANDLE;
        }
        at = layouts.emplace(interface, created).first;
    }
    return at->second.layout;
}

VkPipelineCache shared_cache(VkDevice device)
{
    std::lock_guard<std::mutex> lock(mutex);
    return open_cache(device, devices[device], 0, nullptr);
}

bool has_pipeline(VkDevice device, const VkComputePipelineCreateInfo& info, const std::string& code)
{
    const Key key = pipeline_key(info, code);
    std::lock_guard<std::mutex> lock(mutex);
    return devices[device].by_key.count(key) != 0;
}

VkResult acquire_pipeline(VkDevice device, VkComputePipelineCreateInfo info, const std::string& code,
                       VkPipelineCache kp_cache, VkPipeline* pipeline)
{
    const Key key = pipeline_key(info, code);
    {
        std::lock_guard<std::mutex> lock(mutex);
        Shared& shared = devices[device];
        auto at = shared.by_key.find(key);
        if (at != shared.by_key.end()) {
            *pipeline = at->second;
            add_user(shared, *pipeline);
            return VK_SUCCESS;
        }
    }
    const VkPipelineCache shared_one = shared_cache(device);
    VkPipeline compiled = VK_NULL_HANDLE;
    const VkResult result = __real_vkCreateComputePipelines(
      device, shared_one != VK_NULL_HANDLE ? shared_one : kp_cache, 1, &info, nullptr, &compiled);
    if (result != VK_SUCCESS) {
        *pipeline = VK_NULL_HANDLE;
        return result;
    }
    VkPipeline duplicate = VK_NULL_HANDLE;
    {
        std::lock_guard<std::mutex> lock(mutex);
        Shared& shared = devices[device];
        auto [at, is_new] = shared.by_key.emplace(key, compiled);
        if (is_new) {
            shared.pipelines[compiled] = { at, 1, {} };
            shared.compiled++;
        } else { // another thread was faster
            duplicate = compiled;
            add_user(shared, at->second);
        }
        *pipeline = at->second;
    }
    __real_vkDestroyPipeline(device, duplicate, nullptr);
    return VK_SUCCESS;
}

void release_pipeline(VkDevice device, VkPipeline pipeline, bool keep_idle)
{
    std::vector<VkPipeline> old;
    {
        std::lock_guard<std::mutex> lock(mutex);
        Shared& shared = devices[device];
        auto at = shared.pipelines.find(pipeline);
        if (at == shared.pipelines.end()) {
            old.push_back(pipeline);
        } else if (--at->second.users == 0) {
            at->second.idle = shared.idle.insert(shared.idle.end(), pipeline);
        }
        while (!keep_idle && shared.idle.size() > max_idle) {
            old.push_back(shared.idle.front());
            shared.idle.pop_front();
            shared.by_key.erase(shared.pipelines.at(old.back()).by_key);
            shared.pipelines.erase(old.back());
        }
    }
    for (VkPipeline each : old) {
        __real_vkDestroyPipeline(device, each, nullptr);
    }
}

void destroy_shared(VkDevice device)
{
    Shared shared;
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto at = devices.find(device);
        if (at == devices.end()) {
            return;
        }
        shared = std::move(at->second);
        devices.erase(at);
    }
    for (const auto& [pipeline, layouts] : shared.pipelines) {
        __real_vkDestroyPipeline(device, pipeline, nullptr);
    }
    for (const auto& [interface, layout] : shared.layouts) {
        destroy_layout(device, layout);
    }
    vkDestroyPipelineCache(device, shared.cache, nullptr);
}

} // namespace vksched

// ---- for the companion, which finds these by name

// Initialize the device's pipeline cache with data of vksched_read_cache, before its first
// pipeline. The driver ignores data of other drivers.
EXPORT void vksched_fill_cache(VkDevice device, const void* data, size_t size)
{
    std::lock_guard<std::mutex> lock(vksched::mutex);
    vksched::open_cache(device, vksched::devices[device], size, data);
}

// As vkGetPipelineCacheData.
EXPORT VkResult vksched_read_cache(VkDevice device, size_t* size, void* data)
{
    const VkPipelineCache cache = vksched::shared_cache(device);
    if (cache == VK_NULL_HANDLE) {
        *size = 0;
        return VK_SUCCESS;
    }
    return vkGetPipelineCacheData(device, cache, size, data);
}

// Return how many pipelines were compiled for the device so far, are alive, and are idle.
EXPORT void vksched_count_pipelines(VkDevice device, size_t counts[3])
{
    std::lock_guard<std::mutex> lock(vksched::mutex);
    const vksched::Shared& shared = vksched::devices[device];
    counts[0] = shared.compiled;
    counts[1] = shared.pipelines.size();
    counts[2] = shared.idle.size();
}

// Set the maximum number of idle pipelines of a device. Return the previous one.
EXPORT size_t vksched_set_max_idle_pipelines(size_t count)
{
    std::lock_guard<std::mutex> lock(vksched::mutex);
    std::swap(vksched::max_idle, count);
    return count;
}
