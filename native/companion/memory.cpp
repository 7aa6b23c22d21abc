// Device memory that the host sees, and pipelines made before they are asked for.
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

// ---- device memory that the host sees, as all of it is where host and device share one memory

// Returns the memory of a storage tensor for the host to write to, or None where it cannot be seen.
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
                return py::none(); // kp takes the first of these types
            }
            void* data = nullptr;
            const VkResult result = vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &data);
            check(vksched::check_mapped(result, &data), "vkMapMemory");
            return py::memoryview::from_memory(data, Py_ssize_t(tensor.memorySize()));
        }
    }
    return py::none();
}

// Ends what map_memory began; what it returned must not be used any more.
void unmap_memory(kp::Manager& manager, kp::Tensor& tensor)
{
    const auto device = raw<VkDevice>(get(manager, ManagerDevice{}));
    const auto memory = raw<VkDeviceMemory>(get(tensor, TensorMemory{}));
    if (device != VK_NULL_HANDLE && memory != VK_NULL_HANDLE) {
        vkUnmapMemory(device, memory);
    }
}

// ---- pipelines

// SPIR-V, the values of specialisation ids 0, 1, ..., storage buffers, bytes of push constants, the
// size that subgroups are to have or 0
using Wanted = std::tuple<py::bytes, std::vector<uint32_t>, uint32_t, uint32_t, uint32_t>;

VkDevice open_device(kp::Manager& manager)
{
    const auto device = raw<VkDevice>(get(manager, ManagerDevice{}));
    if (device == VK_NULL_HANDLE) {
        throw std::runtime_error("[pipelines] expected an open device, got a destroyed one");
    }
    return device;
}

// Compiles on several threads; what fails here is tried again, and told, where it is needed.
void make_pipelines(kp::Manager& manager, const std::vector<Wanted>& wanted, unsigned threads)
{
    const VkDevice device = open_device(manager);
    std::vector<std::string> codes;
    for (const auto& each : wanted) {
        codes.emplace_back(std::get<0>(each));
    }
    std::atomic<size_t> next{ 0 };
    const auto work = [&] {
        for (size_t i = next++; i < wanted.size(); i = next++) {
            const auto& [code, constants, buffers, push_bytes, subgroup] = wanted[i];
            in_kp.make_pipeline(device, reinterpret_cast<const uint32_t*>(codes[i].data()),
                                codes[i].size(), constants.data(),
                                static_cast<uint32_t>(constants.size()), buffers, push_bytes,
                                subgroup);
        }
    };
    py::gil_scoped_release no_gil;
    std::vector<std::thread> others;
    others.reserve(threads);
    for (size_t i = 1; i < std::min<size_t>(threads, wanted.size()); ++i) {
        try {
            others.emplace_back(work);
        } catch (const std::exception&) { // the system gives no more: those there are do it all
            break;
        }
    }
    work();
    for (auto& other : others) {
        other.join();
    }
}

void fill_pipeline_cache(kp::Manager& manager, const std::string& data)
{
    in_kp.fill_cache(open_device(manager), data.data(), data.size());
}

py::bytes read_pipeline_cache(kp::Manager& manager)
{
    const VkDevice device = open_device(manager);
    size_t size = 0;
    check(in_kp.read_cache(device, &size, nullptr), "vkGetPipelineCacheData");
    std::string data(size, '\0');
    check(in_kp.read_cache(device, &size, data.data()), "vkGetPipelineCacheData");
    data.resize(size);
    return data;
}

} // namespace

void bind_memory(py::module_& m)
{
    m.def("map_memory", &map_memory, py::arg("manager"), py::arg("tensor"),
          "A storage tensor's memory, or None where the host cannot see it; until unmap_memory.");
    m.def("unmap_memory", &unmap_memory, py::arg("manager"), py::arg("tensor"));
    m.def("featured",
          [](kp::Manager& manager) { return in_kp.featured(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device opened with what it has beyond Vulkan 1.1.");
    m.def("robust_access", [](bool on) { in_kp.robust_access(on); }, py::arg("on"),
          "Whether devices that this thread opens keep accesses beyond a buffer from others' memory.");
    m.def("robust",
          [](kp::Manager& manager) { return in_kp.robust(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device opened so.");
    m.def("timelines",
          [](kp::Manager& manager) { return in_kp.timelines(open_device(manager)) != 0; },
          py::arg("manager"), "Whether the device opened with timeline semaphores.");
    m.def("prefer_cached", [](bool on) { in_kp.prefer_cached(on); }, py::arg("on"),
          "Whether host tensors that this thread makes are to be fast for the host to read.");
    m.def("require_subgroup", [](uint32_t size) { in_kp.require_subgroup(size); }, py::arg("size"),
          "The size that subgroups of Algorithms that this thread makes are to have; 0: any.");
    m.def("make_pipelines", &make_pipelines, py::arg("manager"), py::arg("wanted"), py::arg("threads"),
          "Compiles (spirv, constants, buffers, push_bytes, subgroup) for the Algorithms to come, without "
          "the GIL.");
    m.def("count_pipelines",
          [](kp::Manager& manager) {
              std::array<size_t, 3> counts{};
              in_kp.count_pipelines(open_device(manager), counts.data());
              return py::make_tuple(counts[0], counts[1], counts[2]);
          },
          py::arg("manager"), "Pipelines compiled for the device so far, there now, and without a user.");
    m.def("keep_pipelines", [](size_t count) { return in_kp.keep_pipelines(count); }, py::arg("count"),
          "How many pipelines without a user each device keeps; returns what it was.");
    m.def("fill_pipeline_cache", &fill_pipeline_cache, py::arg("manager"), py::arg("data"),
          "Starts the device's pipeline cache, before its first pipeline, from data that it once gave.");
    m.def("read_pipeline_cache", &read_pipeline_cache, py::arg("manager"), "The pipeline cache as data.");
}

} // namespace companion
