// One pipeline cache, one layout for each interface, and one pipeline for each shader with its
// constants, for all Algorithms of a device: kp makes new ones each time, and drivers compile anew.
//
//   Algorithm ---> take_pipeline(shader, constants, interface) --> in use --> idle --> destroyed
//                        ^------------- the same again ------------------------'   (oldest first)
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

// Of a device; those of graphs in use do not count. Software drivers hold 0.3 to 2 MiB for each.
size_t kept_idle = 128; // after a graph has ended

struct Layout {
    VkDescriptorSetLayout set = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
};

// Shader, specialisation constants, size of subgroups (0: any) and layout: what decides what a
// compiler makes of them.
using Key = std::tuple<std::string, std::string, uint32_t, VkPipelineLayout>;
using Made = std::map<Key, VkPipeline>;

struct Pipeline {
    Made::iterator made;
    uint32_t users = 0;
    std::list<VkPipeline>::iterator idle; // where there are no users
};

struct Shared {
    VkPipelineCache cache = VK_NULL_HANDLE;
    bool has_cache = false; // asked for; the driver may have given none
    std::map<Interface, Layout> layouts;
    Made made;
    std::map<VkPipeline, Pipeline> pipelines;
    std::list<VkPipeline> idle; // the one without users for longest first
    size_t compiled = 0;
};

std::mutex mutex; // guards what follows and kept_idle; never held while a driver compiles
std::map<VkDevice, Shared> devices;

void drop_layout(VkDevice device, const Layout& shared)
{
    vkDestroyPipelineLayout(device, shared.layout, nullptr);
    vkDestroyDescriptorSetLayout(device, shared.set, nullptr);
}

Layout make_layout(VkDevice device, Interface wanted)
{
    std::vector<VkDescriptorSetLayoutBinding> bindings(wanted.buffers);
    for (uint32_t i = 0; i < wanted.buffers; i++) {
        bindings[i].binding = i;
        bindings[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        bindings[i].descriptorCount = 1;
        bindings[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    VkDescriptorSetLayoutCreateInfo set_info{};
    set_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
    set_info.bindingCount = wanted.buffers;
    set_info.pBindings = bindings.data();
    VkPushConstantRange range{ VK_SHADER_STAGE_COMPUTE_BIT, 0, wanted.push_bytes };
    Layout made;
    if (__real_vkCreateDescriptorSetLayout(device, &set_info, nullptr, &made.set) != VK_SUCCESS) {
        return {};
    }
    VkPipelineLayoutCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    info.setLayoutCount = 1;
    info.pSetLayouts = &made.set;
    info.pushConstantRangeCount = wanted.push_bytes ? 1 : 0;
    info.pPushConstantRanges = &range;
    if (__real_vkCreatePipelineLayout(device, &info, nullptr, &made.layout) != VK_SUCCESS) {
        made.layout = VK_NULL_HANDLE;
        drop_layout(device, made);
        return {};
    }
    return made;
}

// With the mutex held.
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

// With the mutex held: one more user of a pipeline that is there.
void use(Shared& shared, VkPipeline pipeline)
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

Key key_of(const VkComputePipelineCreateInfo& info, const std::string& code)
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

VkPipelineLayout shared_layout(VkDevice device, Interface wanted)
{
    if (wanted.buffers == 0) {
        return VK_NULL_HANDLE;
    }
    std::lock_guard<std::mutex> lock(mutex);
    auto& known = devices[device].layouts;
    auto at = known.find(wanted);
    if (at == known.end()) {
        Layout made = make_layout(device, wanted);
        if (made.layout == VK_NULL_HANDLE) {
            return VK_NULL_HANDLE;
        }
        at = known.emplace(wanted, made).first;
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
    const Key key = key_of(info, code);
    std::lock_guard<std::mutex> lock(mutex);
    return devices[device].made.count(key) != 0;
}

VkResult take_pipeline(VkDevice device, VkComputePipelineCreateInfo info, const std::string& code,
                       VkPipelineCache own_cache, VkPipeline* pipeline)
{
    const Key key = key_of(info, code);
    {
        std::lock_guard<std::mutex> lock(mutex);
        Shared& shared = devices[device];
        auto at = shared.made.find(key);
        if (at != shared.made.end()) {
            *pipeline = at->second;
            use(shared, *pipeline);
            return VK_SUCCESS;
        }
    }
    const VkPipelineCache shared_one = shared_cache(device);
    VkPipeline made = VK_NULL_HANDLE;
    const VkResult result = __real_vkCreateComputePipelines(
      device, shared_one != VK_NULL_HANDLE ? shared_one : own_cache, 1, &info, nullptr, &made);
    if (result != VK_SUCCESS) {
        *pipeline = VK_NULL_HANDLE;
        return result;
    }
    VkPipeline spare = VK_NULL_HANDLE;
    {
        std::lock_guard<std::mutex> lock(mutex);
        Shared& shared = devices[device];
        auto [at, is_new] = shared.made.emplace(key, made);
        if (is_new) {
            shared.pipelines[made] = { at, 1, {} };
            shared.compiled++;
        } else { // another thread was faster
            spare = made;
            use(shared, at->second);
        }
        *pipeline = at->second;
    }
    __real_vkDestroyPipeline(device, spare, nullptr);
    return VK_SUCCESS;
}

void give_pipeline(VkDevice device, VkPipeline pipeline, bool is_wanted)
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
        while (!is_wanted && shared.idle.size() > kept_idle) {
            old.push_back(shared.idle.front());
            shared.idle.pop_front();
            shared.made.erase(shared.pipelines.at(old.back()).made);
            shared.pipelines.erase(old.back());
        }
    }
    for (VkPipeline each : old) {
        __real_vkDestroyPipeline(device, each, nullptr);
    }
}

void drop_shared(VkDevice device)
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
    for (const auto& [pipeline, known] : shared.pipelines) {
        __real_vkDestroyPipeline(device, pipeline, nullptr);
    }
    for (const auto& [interface, layout] : shared.layouts) {
        drop_layout(device, layout);
    }
    vkDestroyPipelineCache(device, shared.cache, nullptr);
}

} // namespace vksched

// ---- for the companion, which finds these by name

// Starts the device's pipeline cache from what vksched_read_cache once gave; before its first
// pipeline. The driver leaves out what is not its own.
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

// How many pipelines were compiled for the device so far, are there now, and have no user.
EXPORT void vksched_count_pipelines(VkDevice device, size_t counts[3])
{
    std::lock_guard<std::mutex> lock(vksched::mutex);
    const vksched::Shared& shared = vksched::devices[device];
    counts[0] = shared.compiled;
    counts[1] = shared.pipelines.size();
    counts[2] = shared.idle.size();
}

// Sets how many pipelines without a user each device keeps; returns what it was.
EXPORT size_t vksched_keep_pipelines(size_t count)
{
    std::lock_guard<std::mutex> lock(vksched::mutex);
    std::swap(vksched::kept_idle, count);
    return count;
}
