// What the files of the companion share: errors, kp's private members, kp's own functions of ours.
//
//   module.cpp                  the module        errors.cpp   VkResults as exceptions
//   devices.cpp                 descriptions, of  memory.cpp   mapped memory, pipelines
//   features.cpp, limits.cpp    a part each       queue.hpp    queues as recordings share them
//   recording.hpp, .cpp         Recording:
//   commands.cpp                what it takes,
//   submissions.cpp             how it runs
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

// Raises where kp has not created the device.
void require_open(kp::Manager& manager);

// From now on the process ends without the drivers' own destructors: a software driver whose threads
// still work on a submission crashes in them (seen with SwiftShader 5.0). Python has ended
// by then, and its files are flushed.
void end_without_destructors();

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device);

// ---- what native/vk_hooks/ keeps inside kp's module, found by name

using TakeError = VkResult (*)();
using MakePipeline = VkResult (*)(VkDevice, const uint32_t*, size_t, const uint32_t*, uint32_t,
                                  uint32_t, uint32_t, uint32_t);
using FillCache = void (*)(VkDevice, const void*, size_t);
using ReadCache = VkResult (*)(VkDevice, size_t*, void*);
using CountPipelines = void (*)(VkDevice, size_t*);
using KeepPipelines = size_t (*)(size_t);
using Switch = void (*)(int);
using RequireSubgroup = void (*)(uint32_t);
using Featured = int (*)(VkDevice);

struct InKp {
    TakeError take_noted = nullptr;
    Switch prefer_cached = nullptr;
    RequireSubgroup require_subgroup = nullptr;
    Featured featured = nullptr;
    Switch robust_access = nullptr;
    Featured robust = nullptr;
    Featured timelines = nullptr;
    Featured host_query_reset = nullptr;
    MakePipeline make_pipeline = nullptr;
    FillCache fill_cache = nullptr;
    ReadCache read_cache = nullptr;
    CountPipelines count_pipelines = nullptr;
    KeepPipelines keep_pipelines = nullptr;
};
extern InKp in_kp;

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

// kp keeps each handle behind a shared pointer, which is empty after destroy().
template<typename Raw, typename Handle>
Raw raw(const std::shared_ptr<Handle>& handle)
{
    return handle ? static_cast<Raw>(*handle) : Raw{ VK_NULL_HANDLE };
}

} // namespace
} // namespace companion
