// Declarations that the companion's files share: errors, kp's private members, hooks in kp's
// module.
//
//   module.cpp                   the module
//   errors.cpp                   VkResults as exceptions
//   devices.cpp, features.cpp,   descriptions of physical devices
//   limits.cpp
//   memory.cpp                   mapped memory, pipelines
//   queue.hpp, .cpp              queues that recordings share
//   host_import.hpp              host memory as a buffer
//   recording.hpp, .cpp          Recording: its lifetime
//   commands.cpp                 Recording: its commands
//   submissions.cpp              Recording: submission, waiting, timing
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <kompute/Kompute.hpp>
#include <vulkan/vulkan.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace companion {

// ---- errors

const char* result_name(VkResult result);

struct Failure : std::runtime_error {
    Failure(const std::string& what, VkResult result)
      : std::runtime_error(what + ": " + result_name(result)), result(result)
    {
    }
    VkResult result;
};

void check(VkResult result, const char* call);

// Throw if kp has not created the device.
void require_open(kp::Manager& manager);

// Exit the process without the drivers' destructors: a software driver whose threads still run a
// submission crashes in them (seen with SwiftShader 5.0). Python has ended by then, and its files
// are flushed.
void end_without_destructors();

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device);

// ---- functions of native/vk_hooks/ in kp's module, found by name

using TakeError = VkResult (*)();
using CompilePipeline = VkResult (*)(VkDevice, const uint32_t*, size_t, const uint32_t*, uint32_t,
                                  uint32_t, uint32_t, uint32_t);
using FillCache = void (*)(VkDevice, const void*, size_t);
using ReadCache = VkResult (*)(VkDevice, size_t*, void*);
using CountPipelines = void (*)(VkDevice, size_t*);
using SetMaxIdlePipelines = size_t (*)(size_t);
using SetFlag = void (*)(int);
using SetSubgroupSize = void (*)(uint32_t);
using IsEnabled = int (*)(VkDevice);

struct KpHooks {
    TakeError take_error = nullptr;
    SetFlag set_prefer_cached = nullptr;
    SetSubgroupSize set_required_subgroup_size = nullptr;
    IsEnabled features_enabled = nullptr;
    SetFlag set_robust_access = nullptr;
    IsEnabled robust_access_enabled = nullptr;
    IsEnabled timeline_semaphores_enabled = nullptr;
    IsEnabled host_query_reset_enabled = nullptr;
    CompilePipeline compile_pipeline = nullptr;
    FillCache fill_cache = nullptr;
    ReadCache read_cache = nullptr;
    CountPipelines count_pipelines = nullptr;
    SetMaxIdlePipelines set_max_idle_pipelines = nullptr;
};
extern KpHooks kp_hooks;

// ---- the parts of the module

void bind_errors(py::module_& m);
void bind_devices(py::module_& m);
void bind_memory(py::module_& m);
void bind_recording(py::module_& m);

// ---- access to kp's private members: an explicit instantiation may name them

namespace { // each file has its own

template<auto Member, typename Tag>
struct Open {
    friend auto member(Tag) { return Member; }
};
#define OPEN(tag, class_, name)                                                                    \
    struct tag {                                                                                   \
        friend auto member(tag);                                                                   \
    };                                                                                             \
    template struct Open<&class_::name, tag>;

OPEN(ManagerPhysical, kp::Manager, mPhysicalDevice)
OPEN(ManagerDevice, kp::Manager, mDevice)
OPEN(ManagerFamilies, kp::Manager, mComputeQueueFamilyIndices)
OPEN(SequenceDevice, kp::Sequence, mDevice)
OPEN(SequenceQueue, kp::Sequence, mComputeQueue)
OPEN(SequencePool, kp::Sequence, mCommandPool)
OPEN(SequenceCommands, kp::Sequence, mCommandBuffer)
OPEN(TensorDevice, kp::Tensor, mDevice)
OPEN(TensorBuffer, kp::Tensor, mPrimaryBuffer)
OPEN(TensorMemory, kp::Tensor, mPrimaryMemory)
OPEN(AlgorithmDevice, kp::Algorithm, mDevice)
OPEN(AlgorithmPipeline, kp::Algorithm, mPipeline)
OPEN(AlgorithmLayout, kp::Algorithm, mPipelineLayout)
OPEN(AlgorithmSet, kp::Algorithm, mDescriptorSet)
OPEN(AlgorithmPushCount, kp::Algorithm, mPushConstantsSize)
OPEN(AlgorithmPushSize, kp::Algorithm, mPushConstantsDataTypeMemorySize)

template<typename Tag, typename Object>
auto& get(Object& object, Tag)
{
    return object.*member(Tag{});
}

// kp stores each handle in a shared pointer, which is empty after destroy().
template<typename Raw, typename Handle>
Raw raw(const std::shared_ptr<Handle>& handle)
{
    return handle ? static_cast<Raw>(*handle) : Raw{ VK_NULL_HANDLE };
}

} // namespace
} // namespace companion
