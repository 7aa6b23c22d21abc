// Host-visible device memory, and pipelines that are compiled in advance.
#include "vk_hooks/mapped.hpp"
#include "companion/companion.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <thread>
#include <tuple>
#include <vector>

namespace companion {
namespace {

// ---- host-visible device memory: all of it with unified memory

// Map the memory of a storage tensor for host writes. Return None if it is not host-visible.
py::object map_memory(kp::Manager& manager, kp::Tensor& tensor)
{
    const auto device = raw<VkDevice>(get(manager, ManagerDevice{}));
    const auto buffer = raw<VkBuffer>(get(tensor, TensorBuffer{}));
    const auto memory = raw<VkDeviceMemory>(get(tensor, TensorMemory{}));
    if (device == VK_NULL_HANDLE || buffer == VK_NULL_HANDLE || memory == VK_NULL_HANDLE ||
        tensor.tensorType() != kp::Tensor::TensorTypes::eStorage) {
        throw std::runtime_error("[memory] expected an open storage tensor, got another");
    }
    VkMemoryRequirements needs{};
    vkGetBufferMemoryRequirements(device, buffer, &needs);
    VkPhysicalDeviceMemoryProperties properties{};
    vkGetPhysicalDeviceMemoryProperties(raw<VkPhysicalDevice>(get(manager, ManagerPhysical{})),
                                        &properties);
    const VkMemoryPropertyFlags visible =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t i = 0; i < properties.memoryTypeCount; ++i) {
        const VkMemoryPropertyFlags flags = properties.memoryTypes[i].propertyFlags;
        if ((needs.memoryTypeBits & (1u << i)) && (flags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)) {
            if ((flags & visible) != visible) {
                return py::none(); // kp selects the first of these types
            }
            void* data = nullptr;
            const VkResult result = vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &data);
            check(vksched::check_mapped(result, &data), "vkMapMemory");
            return py::memoryview::from_memory(data, Py_ssize_t(tensor.memorySize()));
        }
    }
    return py::none();
}

// Unmap it. The returned view must not be used any more.
void unmap_memory(kp::Manager& manager, kp::Tensor& tensor)
{
    const auto device = raw<VkDevice>(get(manager, ManagerDevice{}));
    const auto memory = raw<VkDeviceMemory>(get(tensor, TensorMemory{}));
    if (device != VK_NULL_HANDLE && memory != VK_NULL_HANDLE) {
        vkUnmapMemory(device, memory);
    }
}

// ---- pipelines

// SPIR-V, values of specialisation ids 0, 1, ..., storage buffers, bytes of push constants,
// required subgroup size or 0.
using PipelineSpec = std::tuple<py::bytes, std::vector<uint32_t>, uint32_t, uint32_t, uint32_t>;

VkDevice open_device(kp::Manager& manager)
{
    const auto device = raw<VkDevice>(get(manager, ManagerDevice{}));
    if (device == VK_NULL_HANDLE) {
        throw std::runtime_error("[pipelines] expected an open device, got a destroyed one");
    }
    return device;
}

// Compile on several threads. A failure is ignored here: it is repeated, and reported, when the
// pipeline is needed.
void compile_pipelines(kp::Manager& manager, const std::vector<PipelineSpec>& specs, unsigned threads)
{
    const VkDevice device = open_device(manager);
    std::vector<std::string> codes;
    for (const auto& spec : specs) {
        codes.emplace_back(std::get<0>(spec));
    }
    std::atomic<size_t> next{ 0 };
    const auto work = [&] {
        for (size_t i = next++; i < specs.size(); i = next++) {
            const auto& [code, constants, buffers, push_bytes, subgroup] = specs[i];
            kp_hooks.compile_pipeline(device, reinterpret_cast<const uint32_t*>(codes[i].data()),
                                codes[i].size(), constants.data(),
                                static_cast<uint32_t>(constants.size()), buffers, push_bytes,
                                subgroup);
        }
    };
    py::gil_scoped_release no_gil;
    std::vector<std::thread> helpers;
    helpers.reserve(threads);
    for (size_t i = 1; i < std::min<size_t>(threads, specs.size()); ++i) {
        try {
            helpers.emplace_back(work);
        } catch (const std::exception&) { // no more threads: the existing ones do all the work
            break;
        }
    }
    work();
    for (auto& helper : helpers) {
        helper.join();
    }
}

void fill_pipeline_cache(kp::Manager& manager, const std::string& data)
{
    kp_hooks.fill_cache(open_device(manager), data.data(), data.size());
}

py::bytes read_pipeline_cache(kp::Manager& manager)
{
    const VkDevice device = open_device(manager);
    size_t size = 0;
    check(kp_hooks.read_cache(device, &size, nullptr), "vkGetPipelineCacheData");
    std::string data(size, '\0');
    check(kp_hooks.read_cache(device, &size, data.data()), "vkGetPipelineCacheData");
    data.resize(size);
    return data;
}

} // namespace

void bind_memory(py::module_& m)
{
    m.def("map_memory", &map_memory, py::arg("manager"), py::arg("tensor"),
          "Maps a storage tensor's memory until unmap_memory; None if it is not host-visible.");
    m.def("unmap_memory", &unmap_memory, py::arg("manager"), py::arg("tensor"));
    m.def("features_enabled",
          [](kp::Manager& manager) { return kp_hooks.features_enabled(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device was opened with features beyond Vulkan 1.1.");
    m.def("set_robust_access", [](bool on) { kp_hooks.set_robust_access(on); }, py::arg("on"),
          "Whether devices that this thread opens have robustBufferAccess.");
    m.def("robust_access_enabled",
          [](kp::Manager& manager) { return kp_hooks.robust_access_enabled(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device was opened with robustBufferAccess.");
    m.def("timeline_semaphores_enabled",
          [](kp::Manager& manager) { return kp_hooks.timeline_semaphores_enabled(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device was opened with timeline semaphores.");
    m.def("set_prefer_cached", [](bool on) { kp_hooks.set_prefer_cached(on); }, py::arg("on"),
          "Whether host tensors that this thread creates prefer HOST_CACHED memory.");
    m.def("set_required_subgroup_size", [](uint32_t size) { kp_hooks.set_required_subgroup_size(size); }, py::arg("size"),
          "Required subgroup size of Algorithms that this thread creates; 0: any.");
    m.def("compile_pipelines", &compile_pipelines, py::arg("manager"), py::arg("specs"), py::arg("threads"),
          "Compiles (spirv, constants, buffers, push_bytes, subgroup) in advance, without the GIL.");
    m.def("count_pipelines",
          [](kp::Manager& manager) {
              std::array<size_t, 3> counts{};
              kp_hooks.count_pipelines(open_device(manager), counts.data());
              return py::make_tuple(counts[0], counts[1], counts[2]);
          },
          py::arg("manager"), "Pipelines compiled for the device so far, alive, and idle.");
    m.def("set_max_idle_pipelines", [](size_t count) { return kp_hooks.set_max_idle_pipelines(count); }, py::arg("count"),
          "Maximum number of idle pipelines of a device; returns the previous one.");
    m.def("fill_pipeline_cache", &fill_pipeline_cache, py::arg("manager"), py::arg("data"),
          "Initializes the device's pipeline cache with saved data, before its first pipeline.");
    m.def("read_pipeline_cache", &read_pipeline_cache, py::arg("manager"), "The data of the pipeline cache.");
}

} // namespace companion
