// Companion to Kompute's Python module: what kp 0.9.0 lacks, on kp's own objects.
//
//   describe_devices()   every physical device, without opening one
//   Recording            a kp.Sequence recorded with barriers, submitted without blocking, waited
//                        for without the GIL, timed, every VkResult checked
//   take_error()         what checked_vulkan.cpp noted inside kp's module
//
// Locks are never held while taking the GIL, and never taken with it held for long. Why all this
// exists: docs/adr/0001-kompute-companion.md. Examples: tests/test_companion.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <kompute/Kompute.hpp>
#include <vulkan/vulkan.h>

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

py::object kp_trace, kp_debug, kp_info, kp_warning, kp_error; // named by kp's headers, unused

namespace {

using Clock = std::chrono::steady_clock;

constexpr double CLOSE_LIMIT_S = 10.0;
constexpr uint64_t SLICE_NS = 100'000'000; // between two looks at Ctrl-C

// ---- results and errors

const char* result_name(VkResult result)
{
    switch (result) {
#define NAME(name)                                                                                 \
    case name:                                                                                     \
        return #name;
        NAME(VK_SUCCESS)
        NAME(VK_NOT_READY)
        NAME(VK_TIMEOUT)
        NAME(VK_INCOMPLETE)
        NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
        NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(VK_ERROR_INITIALIZATION_FAILED)
        NAME(VK_ERROR_DEVICE_LOST)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_FORMAT_NOT_SUPPORTED)
        NAME(VK_ERROR_FRAGMENTED_POOL)
        NAME(VK_ERROR_OUT_OF_POOL_MEMORY)
        NAME(VK_ERROR_INVALID_EXTERNAL_HANDLE)
        NAME(VK_ERROR_FRAGMENTATION)
        NAME(VK_ERROR_UNKNOWN)
#undef NAME
        default:
            return "VK_ERROR_OTHER";
    }
}

struct Failure : std::runtime_error {
    Failure(const std::string& what, VkResult result)
      : std::runtime_error(what + ": " + result_name(result)), result(result)
    {
    }
    VkResult result;
};

void check(VkResult result, const char* call)
{
    if (result < VK_SUCCESS) {
        throw Failure(call, result);
    }
}

PyObject *vulkan_error, *device_lost, *out_of_memory, *timeout_error; // live as long as the process

PyObject* error_class(VkResult result)
{
    switch (result) {
        case VK_ERROR_DEVICE_LOST:
            return device_lost;
        case VK_TIMEOUT:
            return timeout_error;
        case VK_ERROR_OUT_OF_HOST_MEMORY:
        case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        case VK_ERROR_OUT_OF_POOL_MEMORY:
        case VK_ERROR_FRAGMENTED_POOL:
        case VK_ERROR_FRAGMENTATION:
        case VK_ERROR_TOO_MANY_OBJECTS:
            return out_of_memory;
        default:
            return vulkan_error;
    }
}

void translate(std::exception_ptr pointer)
{
    try {
        if (pointer) {
            std::rethrow_exception(pointer);
        }
    } catch (const Failure& failure) {
        PyObject* type = error_class(failure.result);
        py::object error = py::reinterpret_borrow<py::object>(type)(failure.what());
        error.attr("result") = result_name(failure.result);
        PyErr_SetObject(type, error.ptr());
    }
}

// ---- access to kp's private members: an explicit instantiation may name them

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

// ---- description of physical devices

std::string hex(const uint8_t* bytes, size_t count)
{
    static const char* digits = "0123456789abcdef";
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

std::string version_text(uint32_t version)
{
    return std::to_string(VK_VERSION_MAJOR(version)) + "." +
           std::to_string(VK_VERSION_MINOR(version)) + "." +
           std::to_string(VK_VERSION_PATCH(version));
}

std::string driver_version_text(uint32_t version, uint32_t vendor)
{
    if (vendor == 0x10de) { // NVIDIA packs four fields
        return std::to_string(version >> 22) + "." + std::to_string(version >> 14 & 0xff) + "." +
               std::to_string(version >> 6 & 0xff) + "." + std::to_string(version & 0x3f);
    }
    return version_text(version);
}

const char* type_name(VkPhysicalDeviceType type)
{
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
            return "discrete";
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
            return "integrated";
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
            return "virtual";
        case VK_PHYSICAL_DEVICE_TYPE_CPU:
            return "cpu";
        default:
            return "other";
    }
}

std::vector<std::string> device_extensions(VkPhysicalDevice device)
{
    uint32_t count = 0;
    std::vector<VkExtensionProperties> properties;
    VkResult result = VK_INCOMPLETE;
    while (result == VK_INCOMPLETE) {
        check(vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr),
              "vkEnumerateDeviceExtensionProperties");
        properties.resize(count);
        result = vkEnumerateDeviceExtensionProperties(device, nullptr, &count, properties.data());
        check(result, "vkEnumerateDeviceExtensionProperties");
    }
    std::vector<std::string> names;
    for (uint32_t i = 0; i < count; ++i) {
        names.emplace_back(properties[i].extensionName);
    }
    return names;
}

bool has(const std::vector<std::string>& names, const char* name)
{
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device)
{
    uint32_t count = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
    std::vector<VkQueueFamilyProperties> families(count);
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
    families.resize(count);
    return families;
}

py::list describe_heaps(VkPhysicalDevice device, bool has_budget)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
    budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    VkPhysicalDeviceMemoryProperties2 memory{};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    if (has_budget) {
        memory.pNext = &budget;
        vkGetPhysicalDeviceMemoryProperties2(device, &memory);
    } else {
        vkGetPhysicalDeviceMemoryProperties(device, &memory.memoryProperties);
    }
    py::list heaps;
    for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; ++i) {
        const VkMemoryHeap& heap = memory.memoryProperties.memoryHeaps[i];
        py::dict entry;
        entry["size_bytes"] = heap.size;
        entry["device_local"] = (heap.flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0;
        entry["budget_bytes"] = py::none();
        entry["usage_bytes"] = py::none();
        if (has_budget && budget.heapBudget[i] > 0) {
            entry["budget_bytes"] = budget.heapBudget[i];
            entry["usage_bytes"] = budget.heapUsage[i];
        }
        heaps.append(entry);
    }
    return heaps;
}

py::dict describe_limits(const VkPhysicalDeviceLimits& limits)
{
    py::dict entry;
#define LIMIT(name) entry[#name] = limits.name;
#define LIMIT3(name)                                                                               \
    entry[#name] = py::make_tuple(limits.name[0], limits.name[1], limits.name[2]);
    LIMIT(maxComputeWorkGroupInvocations)
    LIMIT3(maxComputeWorkGroupSize)
    LIMIT3(maxComputeWorkGroupCount)
    LIMIT(maxComputeSharedMemorySize)
    LIMIT(maxPushConstantsSize)
    LIMIT(maxPerStageDescriptorStorageBuffers)
    LIMIT(maxPerStageResources)
    LIMIT(maxDescriptorSetStorageBuffers)
    LIMIT(maxBoundDescriptorSets)
    LIMIT(maxStorageBufferRange)
    LIMIT(maxMemoryAllocationCount)
    LIMIT(minMemoryMapAlignment)
    LIMIT(minStorageBufferOffsetAlignment)
    LIMIT(nonCoherentAtomSize)
    LIMIT(bufferImageGranularity)
    LIMIT(optimalBufferCopyOffsetAlignment)
#undef LIMIT
#undef LIMIT3
    entry["timestampComputeAndGraphics"] = limits.timestampComputeAndGraphics == VK_TRUE;
    return entry;
}

py::list flag_names(VkFlags flags, std::initializer_list<std::pair<VkFlags, const char*>> names)
{
    py::list found;
    for (const auto& [bit, name] : names) {
        if (flags & bit) {
            found.append(name);
        }
    }
    return found;
}

py::dict describe_device(VkPhysicalDevice device, uint32_t index)
{
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(device, &properties);
    const bool modern = properties.apiVersion >= VK_API_VERSION_1_1;
    const std::vector<std::string> extensions = device_extensions(device);

    py::dict entry;
    entry["index"] = index;
    entry["name"] = std::string(properties.deviceName);
    entry["type"] = type_name(properties.deviceType);
    entry["vendor_id"] = properties.vendorID;
    entry["device_id"] = properties.deviceID;
    entry["api_version"] = version_text(properties.apiVersion);
    entry["driver_version"] = driver_version_text(properties.driverVersion, properties.vendorID);
    entry["driver_name"] = "";
    entry["driver_info"] = "";
    for (const char* key : { "driver_id", "uuid", "driver_uuid", "luid", "pci_bus" }) {
        entry[key] = py::none();
    }
    py::dict limits = describe_limits(properties.limits);
    entry["limits"] = limits;
    limits["maxMemoryAllocationSize"] = py::none();
    limits["maxPerSetDescriptors"] = py::none();
    entry["subgroup_size"] = 1;
    entry["subgroup_operations"] = py::list();
    entry["subgroup_in_compute"] = false;
    entry["extensions"] = extensions;
    entry["timestamp_period_ns"] = properties.limits.timestampPeriod;
    entry["heaps"] = describe_heaps(device, modern && has(extensions, "VK_EXT_memory_budget"));

    if (modern) {
        VkPhysicalDeviceProperties2 all{};
        all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
        VkPhysicalDeviceIDProperties id{};
        id.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES;
        VkPhysicalDeviceSubgroupProperties subgroup{};
        subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
        VkPhysicalDeviceMaintenance3Properties sizes{};
        sizes.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES;
        VkPhysicalDeviceDriverProperties driver{};
        driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
        VkPhysicalDevicePCIBusInfoPropertiesEXT pci{};
        pci.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT;
        all.pNext = &id;
        id.pNext = &subgroup;
        subgroup.pNext = &sizes;
        void** tail = &sizes.pNext;
        const bool has_driver = properties.apiVersion >= VK_API_VERSION_1_2 ||
                                has(extensions, "VK_KHR_driver_properties");
        if (has_driver) {
            *tail = &driver;
            tail = &driver.pNext;
        }
        const bool has_pci = has(extensions, "VK_EXT_pci_bus_info");
        if (has_pci) {
            *tail = &pci;
        }
        vkGetPhysicalDeviceProperties2(device, &all);

        entry["uuid"] = hex(id.deviceUUID, VK_UUID_SIZE);
        entry["driver_uuid"] = hex(id.driverUUID, VK_UUID_SIZE);
        if (id.deviceLUIDValid) {
            entry["luid"] = hex(id.deviceLUID, VK_LUID_SIZE);
        }
        entry["subgroup_size"] = std::max(1u, subgroup.subgroupSize);
        entry["subgroup_in_compute"] =
          (subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0;
        entry["subgroup_operations"] =
          flag_names(subgroup.supportedOperations,
                     { { VK_SUBGROUP_FEATURE_BASIC_BIT, "basic" },
                       { VK_SUBGROUP_FEATURE_VOTE_BIT, "vote" },
                       { VK_SUBGROUP_FEATURE_ARITHMETIC_BIT, "arithmetic" },
                       { VK_SUBGROUP_FEATURE_BALLOT_BIT, "ballot" },
                       { VK_SUBGROUP_FEATURE_SHUFFLE_BIT, "shuffle" },
                       { VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT, "shuffle_relative" },
                       { VK_SUBGROUP_FEATURE_CLUSTERED_BIT, "clustered" },
                       { VK_SUBGROUP_FEATURE_QUAD_BIT, "quad" } });
        limits["maxMemoryAllocationSize"] = sizes.maxMemoryAllocationSize;
        limits["maxPerSetDescriptors"] = sizes.maxPerSetDescriptors;
        if (has_driver) {
            entry["driver_name"] = std::string(driver.driverName);
            entry["driver_info"] = std::string(driver.driverInfo);
            entry["driver_id"] = static_cast<uint32_t>(driver.driverID);
        }
        if (has_pci) {
            char text[32];
            std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", pci.pciDomain, pci.pciBus,
                          pci.pciDevice, pci.pciFunction);
            entry["pci_bus"] = std::string(text);
        }
    }

    const std::vector<VkQueueFamilyProperties> families = queue_families(device);
    py::list family_list;
    py::object compute_family = py::none();
    uint32_t valid_bits = 0;
    for (uint32_t i = 0; i < families.size(); ++i) {
        py::dict family;
        family["flags"] = flag_names(families[i].queueFlags,
                                     { { VK_QUEUE_GRAPHICS_BIT, "graphics" },
                                       { VK_QUEUE_COMPUTE_BIT, "compute" },
                                       { VK_QUEUE_TRANSFER_BIT, "transfer" },
                                       { VK_QUEUE_SPARSE_BINDING_BIT, "sparse" } });
        family["count"] = families[i].queueCount;
        family["timestamp_valid_bits"] = families[i].timestampValidBits;
        family_list.append(family);
        if (compute_family.is_none() && (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT)) {
            compute_family = py::int_(i); // the first one, as kp chooses
            valid_bits = families[i].timestampValidBits;
        }
    }
    entry["queue_families"] = family_list;
    entry["compute_queue_family"] = compute_family;
    entry["timestamp_valid_bits"] = valid_bits;

    std::string why;
    if (!modern) {
        why = "expected Vulkan 1.1, got " + version_text(properties.apiVersion) +
              "; try a newer driver";
    } else if (compute_family.is_none()) {
        why = "expected a compute queue, got none";
    }
    entry["usable"] = why.empty();
    entry["why"] = why;
    return entry;
}

struct ShortInstance {
    VkInstance instance = VK_NULL_HANDLE;
    ~ShortInstance() { vkDestroyInstance(instance, nullptr); }
};

py::list describe_devices()
{
    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.pApplicationName = "vksched";
    application.apiVersion = VK_API_VERSION_1_1;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    ShortInstance owner;
    std::vector<VkPhysicalDevice> devices;
    {
        py::gil_scoped_release no_gil; // drivers may need seconds to load
        VkInstance instance = VK_NULL_HANDLE;
        check(vkCreateInstance(&info, nullptr, &instance), "vkCreateInstance");
        owner.instance = instance;
        uint32_t count = 0;
        VkResult result = VK_INCOMPLETE;
        while (result == VK_INCOMPLETE) {
            check(vkEnumeratePhysicalDevices(instance, &count, nullptr),
                  "vkEnumeratePhysicalDevices");
            devices.resize(count);
            result = vkEnumeratePhysicalDevices(instance, &count, devices.data());
            check(result, "vkEnumeratePhysicalDevices");
        }
        devices.resize(count);
    }
    py::list found;
    for (uint32_t i = 0; i < devices.size(); ++i) {
        found.append(describe_device(devices[i], i));
    }
    return found;
}

std::string loader_version()
{
    uint32_t version = VK_API_VERSION_1_0;
    check(vkEnumerateInstanceVersion(&version), "vkEnumerateInstanceVersion");
    return version_text(version);
}

py::list memory_info(kp::Manager& manager)
{
    const auto device = raw<VkPhysicalDevice>(get(manager, ManagerPhysical{}));
    if (raw<VkDevice>(get(manager, ManagerDevice{})) == VK_NULL_HANDLE) {
        throw std::runtime_error("[memory] expected an open device, got a destroyed one");
    }
    return describe_heaps(device, has(device_extensions(device), "VK_EXT_memory_budget"));
}

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
            check(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &data), "vkMapMemory");
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

// ---- errors noted inside kp's module

using TakeError = VkResult (*)();
using MakePipeline = VkResult (*)(VkDevice, const uint32_t*, size_t, const uint32_t*, uint32_t,
                                  uint32_t, uint32_t);
using FillCache = void (*)(VkDevice, const void*, size_t);
using ReadCache = VkResult (*)(VkDevice, size_t*, void*);
using PreferCached = void (*)(int);
TakeError take_noted = nullptr;
PreferCached prefer_cached = nullptr;
MakePipeline make_pipeline = nullptr;
FillCache fill_cache = nullptr;
ReadCache read_cache = nullptr;

void find_functions(const py::module_& kp_module)
{
    const std::string path = py::str(kp_module.attr("__file__"));
    void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    const auto find = [&](auto& function, const char* name) {
        void* symbol = library ? dlsym(library, name) : nullptr;
        if (symbol == nullptr) {
            throw py::import_error("expected kp built with native/*.cpp, got " + path);
        }
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(take_noted, "vksched_take_error");
    find(prefer_cached, "vksched_prefer_cached");
    find(make_pipeline, "vksched_make_pipeline");
    find(fill_cache, "vksched_fill_cache");
    find(read_cache, "vksched_read_cache");
}

// Raises what went wrong inside kp on this thread since the last call; does nothing if nothing did.
void raise_error(const std::string& what)
{
    check(take_noted(), what.c_str());
}

void require_open(kp::Manager& manager)
{
    const VkResult result = take_noted();
    if (raw<VkDevice>(get(manager, ManagerDevice{})) == VK_NULL_HANDLE) {
        throw Failure("vkCreateDevice",
                      result < VK_SUCCESS ? result : VK_ERROR_INITIALIZATION_FAILED);
    }
}

// ---- pipelines

// SPIR-V, the values of specialisation ids 0, 1, ..., storage buffers, bytes of push constants
using Wanted = std::tuple<py::bytes, std::vector<uint32_t>, uint32_t, uint32_t>;

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
            const auto& [code, constants, buffers, push_bytes] = wanted[i];
            make_pipeline(device, reinterpret_cast<const uint32_t*>(codes[i].data()),
                          codes[i].size(), constants.data(),
                          static_cast<uint32_t>(constants.size()), buffers, push_bytes);
        }
    };
    py::gil_scoped_release no_gil;
    std::vector<std::thread> others;
    for (size_t i = 1; i < std::min<size_t>(threads, wanted.size()); ++i) {
        others.emplace_back(work);
    }
    work();
    for (auto& other : others) {
        other.join();
    }
}

void fill_pipeline_cache(kp::Manager& manager, const std::string& data)
{
    fill_cache(open_device(manager), data.data(), data.size());
}

py::bytes read_pipeline_cache(kp::Manager& manager)
{
    const VkDevice device = open_device(manager);
    size_t size = 0;
    check(read_cache(device, &size, nullptr), "vkGetPipelineCacheData");
    std::string data(size, '\0');
    check(read_cache(device, &size, data.data()), "vkGetPipelineCacheData");
    data.resize(size);
    return data;
}

// ---- recording

// A VkQueue must be used by one thread at a time, and all sequences of a Manager share one.
std::shared_ptr<std::mutex> queue_mutex(VkQueue queue)
{
    static std::mutex guard;
    static std::map<VkQueue, std::weak_ptr<std::mutex>> mutexes;
    std::lock_guard<std::mutex> lock(guard);
    std::shared_ptr<std::mutex> mutex = mutexes[queue].lock();
    if (!mutex) {
        mutex = std::make_shared<std::mutex>();
        mutexes[queue] = mutex;
    }
    return mutex;
}

struct Access {
    VkPipelineStageFlags stage;
    VkAccessFlags access;
};

Access named_access(const std::string& name, bool before)
{
    const VkPipelineStageFlags shader = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const VkPipelineStageFlags copy = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkAccessFlags shader_access =
      VK_ACCESS_SHADER_WRITE_BIT | (before ? 0 : VK_ACCESS_SHADER_READ_BIT);
    const VkAccessFlags copy_access =
      VK_ACCESS_TRANSFER_WRITE_BIT | (before ? 0 : VK_ACCESS_TRANSFER_READ_BIT);
    if (name == "shader") {
        return { shader, shader_access };
    }
    if (name == "copy") {
        return { copy, copy_access };
    }
    if (name == "device") {
        return { shader | copy, shader_access | copy_access };
    }
    if (name == "host") {
        return { VK_PIPELINE_STAGE_HOST_BIT,
                 VkAccessFlags(before ? VK_ACCESS_HOST_WRITE_BIT : VK_ACCESS_HOST_READ_BIT) };
    }
    throw py::value_error("[barrier] expected \"copy\", \"device\" (both), \"shader\" or \"host\", got \"" +
                          name + "\"");
}

// From now on the process ends without the drivers' own destructors: a software driver whose threads
// still work on a submission crashes in them (seen with SwiftShader 5.0). Python has ended
// by then, and its files are flushed.
void end_without_destructors()
{
#ifdef __GLIBC__
    static std::once_flag once;
    std::call_once(once, [] {
        on_exit(
          [](int status, void*) {
              std::fflush(nullptr);
              _exit(status);
          },
          nullptr);
    });
#endif
}

// One command buffer, one fence used again for every submission, two timestamps.
//
// empty -> recording -> recorded -> pending -> recorded ...
class Recording {
  public:
    Recording(std::shared_ptr<kp::Manager> manager, std::shared_ptr<kp::Sequence> sequence)
      : manager_(std::move(manager)), sequence_(std::move(sequence))
    {
        require_open(*manager_);
        device_ = raw<VkDevice>(get(*manager_, ManagerDevice{}));
        commands_ = raw<VkCommandBuffer>(get(*sequence_, SequenceCommands{}));
        pool_ = raw<VkCommandPool>(get(*sequence_, SequencePool{}));
        queue_ = raw<VkQueue>(get(*sequence_, SequenceQueue{}));
        if (raw<VkDevice>(get(*sequence_, SequenceDevice{})) != device_) {
            throw py::value_error("[recording] expected a sequence of this manager, got another's");
        }
        if (pool_ == VK_NULL_HANDLE || commands_ == VK_NULL_HANDLE) {
            throw Failure("vkAllocateCommandBuffers", VK_ERROR_OUT_OF_HOST_MEMORY);
        }
        queue_mutex_ = queue_mutex(queue_);

        const auto physical = raw<VkPhysicalDevice>(get(*manager_, ManagerPhysical{}));
        const auto families = queue_families(physical);
        const uint32_t family = get(*manager_, ManagerFamilies{}).at(0);
        valid_bits_ = families.at(family).timestampValidBits;
        VkPhysicalDeviceProperties properties{};
        vkGetPhysicalDeviceProperties(physical, &properties);
        period_ns_ = properties.limits.timestampPeriod;
        std::copy_n(properties.limits.maxComputeWorkGroupCount, 3, max_groups_.begin());

        VkFenceCreateInfo fence_info{};
        fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
        check(vkCreateFence(device_, &fence_info, nullptr, &fence_), "vkCreateFence");
        if (valid_bits_ > 0) {
            VkQueryPoolCreateInfo query_info{};
            query_info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
            query_info.queryType = VK_QUERY_TYPE_TIMESTAMP;
            query_info.queryCount = 2;
            const VkResult result = vkCreateQueryPool(device_, &query_info, nullptr, &queries_);
            if (result < VK_SUCCESS) {
                vkDestroyFence(device_, fence_, nullptr); // no destructor runs after this
                throw Failure("vkCreateQueryPool", result);
            }
        }
    }

    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    ~Recording() { close_within(CLOSE_LIMIT_S); }

    void begin()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_usable("begin");
        if (pending_) {
            throw std::runtime_error("[begin] expected an idle recording, got a pending one; wait for it");
        }
        if (state_ != State::empty) {
            check(vkResetCommandPool(device_, pool_, 0), "vkResetCommandPool");
        }
        algorithms_.clear();
        tensors_.clear();
        bound_pipeline_ = VK_NULL_HANDLE;
        bound_set_ = VK_NULL_HANDLE;
        state_ = State::empty;
        submitted_ = false;
        VkCommandBufferBeginInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
        check(vkBeginCommandBuffer(commands_, &info), "vkBeginCommandBuffer");
        state_ = State::recording;
        if (queries_ != VK_NULL_HANDLE) {
            vkCmdResetQueryPool(commands_, queries_, 0, 2);
            // not before what was submitted earlier has ended: times of submissions never overlap
            vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 0);
        }
    }

    void dispatch(std::shared_ptr<kp::Algorithm> algorithm, const std::array<int64_t, 3>& groups,
                  const py::bytes& push)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("dispatch");
        const auto pipeline = raw<VkPipeline>(get(*algorithm, AlgorithmPipeline{}));
        const auto layout = raw<VkPipelineLayout>(get(*algorithm, AlgorithmLayout{}));
        const auto set = raw<VkDescriptorSet>(get(*algorithm, AlgorithmSet{}));
        if (pipeline == VK_NULL_HANDLE ||
            raw<VkDevice>(get(*algorithm, AlgorithmDevice{})) != device_) {
            throw py::value_error("[dispatch] expected a pipeline of this device, got one that is "
                                  "closed or another device's");
        }
        for (int i = 0; i < 3; ++i) {
            if (groups[i] < 1 || groups[i] > max_groups_[i]) {
                throw py::value_error("[dispatch] expected 1 to " + std::to_string(max_groups_[i]) +
                                      " groups in dimension " + std::to_string(i) + ", got " +
                                      std::to_string(groups[i]));
            }
        }
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(push.ptr(), &data, &size) != 0) {
            throw py::error_already_set();
        }
        const Py_ssize_t expected = Py_ssize_t(get(*algorithm, AlgorithmPushCount{})) *
                                    get(*algorithm, AlgorithmPushSize{});
        if (size != expected) {
            throw py::value_error("[dispatch] expected " + std::to_string(expected) +
                                  " bytes of push constants, got " + std::to_string(size));
        }
        // kp's own record functions go through values kept in the Algorithm, which others share.
        if (pipeline != bound_pipeline_) {
            vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
            bound_pipeline_ = pipeline;
        }
        if (set != bound_set_) { // with the layout of its own Algorithm, which fits its pipeline's
            vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set,
                                    0, nullptr);
            bound_set_ = set;
        }
        if (size > 0) {
            vkCmdPushConstants(commands_, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>(size), data);
        }
        vkCmdDispatch(commands_, static_cast<uint32_t>(groups[0]), static_cast<uint32_t>(groups[1]),
                      static_cast<uint32_t>(groups[2]));
        if (algorithms_.empty() || algorithms_.back() != algorithm) {
            algorithms_.push_back(std::move(algorithm));
        }
    }

    // Copies words between buffers; a copy, for barriers.
    void copy(std::shared_ptr<kp::Tensor> source, std::shared_ptr<kp::Tensor> target,
              int64_t source_word, int64_t target_word, int64_t words)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("copy");
        const auto from = raw<VkBuffer>(get(*source, TensorBuffer{}));
        const auto to = raw<VkBuffer>(get(*target, TensorBuffer{}));
        if (from == VK_NULL_HANDLE || to == VK_NULL_HANDLE ||
            raw<VkDevice>(get(*source, TensorDevice{})) != device_ ||
            raw<VkDevice>(get(*target, TensorDevice{})) != device_) {
            throw py::value_error("[copy] expected buffers of this device, got one that is closed or "
                                  "another device's");
        }
        const int64_t source_words = source->size(), target_words = target->size();
        if (words < 1 || source_word < 0 || target_word < 0 || source_word > source_words - words ||
            target_word > target_words - words) {
            throw py::value_error("[copy] expected words within buffers of " +
                                  std::to_string(source_words) + " and " +
                                  std::to_string(target_words) + ", got " + std::to_string(words) +
                                  " from " + std::to_string(source_word) + " to " +
                                  std::to_string(target_word));
        }
        if (from == to && std::abs(source_word - target_word) < words) {
            throw py::value_error("[copy] expected words that do not overlap");
        }
        const VkBufferCopy region{ 4 * VkDeviceSize(source_word), 4 * VkDeviceSize(target_word),
                                   4 * VkDeviceSize(words) };
        vkCmdCopyBuffer(commands_, from, to, 1, &region);
        for (auto& tensor : { source, target }) {
            if (std::find(tensors_.begin(), tensors_.end(), tensor) == tensors_.end()) {
                tensors_.push_back(tensor);
            }
        }
    }

    void barrier(const std::string& source, const std::string& destination)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("barrier");
        const Access from = named_access(source, true);
        const Access to = named_access(destination, false);
        VkMemoryBarrier barrier{};
        barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
        barrier.srcAccessMask = from.access;
        barrier.dstAccessMask = to.access;
        vkCmdPipelineBarrier(commands_, from.stage, to.stage, 0, 1, &barrier, 0, nullptr, 0,
                             nullptr);
    }

    void end()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("end");
        if (queries_ != VK_NULL_HANDLE) {
            vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 1);
        }
        state_ = State::failed; // a buffer whose end failed is invalid until the next begin
        check(vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
        state_ = State::recorded;
    }

    // Without the GIL.
    void submit()
    {
        std::unique_lock<std::mutex> lock(mutex_);
        require_usable("submit");
        if (state_ != State::recorded) {
            throw std::runtime_error("[submit] expected a finished recording, got an unfinished one; call end()");
        }
        if (pending_) {
            throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
        }
        // Others may just be leaving a wait for the last submission: the fence is theirs until then.
        left_.wait(lock, [this] { return waiters_ == 0; });
        require_usable("submit");
        if (pending_) {
            throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
        }
        note_lost(vkResetFences(device_, 1, &fence_), "vkResetFences");
        VkSubmitInfo info{};
        info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
        info.commandBufferCount = 1;
        info.pCommandBuffers = &commands_;
        submitted_ = false;
        VkResult result = VK_SUCCESS;
        {
            std::lock_guard<std::mutex> queue_lock(*queue_mutex_);
            result = vkQueueSubmit(queue_, 1, &info, fence_);
        }
        note_lost(result, "vkQueueSubmit");
        submitted_ = true;
        pending_ = true;
        ++generation_;
    }

    void wait(double timeout_s)
    {
        if (std::isnan(timeout_s) || timeout_s < 0) {
            throw py::value_error("[wait] expected a time of 0 s or more, got " +
                                  std::to_string(timeout_s));
        }
        const double longest_s = 1e9; // thirty years, and no overflow in the clock
        const auto until =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(std::min(timeout_s, longest_s)));
        std::optional<uint64_t> generation;
        while (true) {
            const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
            const uint64_t left_ns = left.count() > 0 ? static_cast<uint64_t>(left.count()) : 0;
            bool ended = false;
            {
                py::gil_scoped_release no_gil;
                ended = wait_slice(std::min(left_ns, SLICE_NS), generation);
            }
            if (ended) {
                return;
            }
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
            if (left_ns <= SLICE_NS) {
                throw Failure("[wait] not ended after " + std::to_string(timeout_s) + " s", VK_TIMEOUT);
            }
        }
    }

    // Without the GIL.
    bool done()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_usable("done");
        if (!pending_) {
            return submitted_;
        }
        const VkResult result = vkGetFenceStatus(device_, fence_);
        note_lost(result, "vkGetFenceStatus");
        if (result == VK_SUCCESS) {
            pending_ = false;
        }
        return !pending_;
    }

    bool pending()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return pending_;
    }

    std::optional<double> duration_s()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_ || lost_ || pending_ || !submitted_ || queries_ == VK_NULL_HANDLE) {
            return std::nullopt;
        }
        std::array<uint64_t, 2> ticks{};
        const VkResult result =
          vkGetQueryPoolResults(device_, queries_, 0, 2, sizeof ticks, ticks.data(),
                                sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
        note_lost(result, "vkGetQueryPoolResults");
        if (result != VK_SUCCESS) {
            return std::nullopt;
        }
        const uint64_t mask = valid_bits_ >= 64 ? ~uint64_t{ 0 } : (uint64_t{ 1 } << valid_bits_) - 1;
        return static_cast<double>((ticks[1] - ticks[0]) & mask) * period_ns_ * 1e-9;
    }

    // Without the GIL. Returns false where the device did not end in time: then what it may still
    // use is leaked, and the Manager must not be destroyed either.
    bool close_within(double limit_s)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (closed_) {
            return true;
        }
        closed_ = true;
        if (raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
            return true; // the device is gone, and the fence with it
        }
        const auto limit = std::chrono::duration<double>(limit_s);
        bool idle = true;
        if (pending_) {
            const VkResult result = vkWaitForFences(
              device_, 1, &fence_, VK_TRUE, static_cast<uint64_t>(std::max(limit_s, 0.0) * 1e9));
            idle = result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST;
        }
        idle = left_.wait_for(lock, limit, [this] { return waiters_ == 0; }) && idle;
        if (!idle) {
            new Kept{ manager_, sequence_, std::move(algorithms_), std::move(tensors_) };
            end_without_destructors();
            return false;
        }
        pending_ = false;
        vkDestroyFence(device_, fence_, nullptr);
        vkDestroyQueryPool(device_, queries_, nullptr);
        algorithms_.clear();
        tensors_.clear();
        return true;
    }

  private:
    enum class State { empty, recording, recorded, failed };
    struct Kept {
        std::shared_ptr<kp::Manager> manager;
        std::shared_ptr<kp::Sequence> sequence;
        std::vector<std::shared_ptr<kp::Algorithm>> algorithms;
        std::vector<std::shared_ptr<kp::Tensor>> tensors;
    };

    void require_usable(const char* what) const
    {
        if (closed_ || raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
            throw std::runtime_error(std::string("[") + what + "] expected an open recording, got a closed one");
        }
        if (lost_) {
            throw Failure(what, VK_ERROR_DEVICE_LOST);
        }
    }

    void require_recording(const char* what) const
    {
        require_usable(what);
        if (state_ != State::recording) {
            throw std::runtime_error(std::string("[") + what + "] expected a begun recording, got another; call begin()");
        }
    }

    // A lost device runs nothing any more: there is nothing left to wait for.
    void note_lost(VkResult result, const char* call)
    {
        if (result == VK_ERROR_DEVICE_LOST) {
            lost_ = true;
            pending_ = false;
        }
        check(result, call);
    }

    // Returns whether the submission that was pending at first has ended. The lock is not held
    // during the wait: several threads may wait for one fence.
    bool wait_slice(uint64_t limit_ns, std::optional<uint64_t>& generation)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        require_usable("wait");
        if (generation && *generation != generation_) {
            return true; // ended, and already submitted again
        }
        if (!pending_) {
            return true;
        }
        generation = generation_;
        ++waiters_;
        lock.unlock();
        const VkResult result = vkWaitForFences(device_, 1, &fence_, VK_TRUE, limit_ns);
        lock.lock();
        if (--waiters_ == 0) {
            left_.notify_all();
        }
        if (result == VK_SUCCESS && *generation == generation_) {
            pending_ = false;
        }
        note_lost(result, "vkWaitForFences");
        return result == VK_SUCCESS;
    }

    std::shared_ptr<kp::Manager> manager_;
    std::shared_ptr<kp::Sequence> sequence_;
    std::vector<std::shared_ptr<kp::Algorithm>> algorithms_; // those of all dispatches
    std::vector<std::shared_ptr<kp::Tensor>> tensors_;       // those of all copies
    VkPipeline bound_pipeline_ = VK_NULL_HANDLE;
    VkDescriptorSet bound_set_ = VK_NULL_HANDLE;
    std::shared_ptr<std::mutex> queue_mutex_;
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;
    VkFence fence_ = VK_NULL_HANDLE;
    VkQueryPool queries_ = VK_NULL_HANDLE;
    uint32_t valid_bits_ = 0;
    double period_ns_ = 0;
    std::array<uint32_t, 3> max_groups_{};

    std::mutex mutex_; // guards all below
    std::condition_variable left_;
    State state_ = State::empty;
    int waiters_ = 0;
    uint64_t generation_ = 0;
    bool submitted_ = false;
    bool pending_ = false;
    bool lost_ = false;
    bool closed_ = false;
};

PyObject* new_error(py::module_& module, const char* name, PyObject* base)
{
    const std::string full = std::string("vksched_native.companion.") + name;
    PyObject* type = PyErr_NewException(full.c_str(), base, nullptr);
    if (type == nullptr) {
        throw py::error_already_set();
    }
    module.attr(name) = py::reinterpret_borrow<py::object>(type);
    return type;
}

} // namespace

PYBIND11_MODULE(companion, m)
{
    m.doc() = "What Kompute's Python module lacks, on its own objects.";
    find_functions(py::module_::import("vksched_native.kp"));
    vulkan_error = new_error(m, "VulkanError", PyExc_RuntimeError);
    device_lost = new_error(m, "DeviceLost", vulkan_error);
    out_of_memory = new_error(m, "OutOfMemory", vulkan_error);
    timeout_error = new_error(m, "Timeout", vulkan_error);
    py::register_local_exception_translator(translate);

    m.def("loader_version", &loader_version, "Vulkan version of the loader.");
    m.def("describe_devices", &describe_devices,
          "Every physical device in loader order; raises VulkanError where there is no driver.");
    m.def("memory_info", &memory_info, py::arg("manager"), "Heaps of an open device, as they are now.");
    m.def("raise_error", &raise_error, py::arg("what"),
          "Raises the first Vulkan error inside kp on this thread since the last call, if any.");
    m.def("require_open", &require_open, py::arg("manager"), "Raises where the device was not created.");
    m.def("leak",
          [](const py::object& object) {
              object.inc_ref();
              end_without_destructors();
          },
          py::arg("object"), "Keeps an object to the end of the process and beyond: its destructor never runs.");

    m.def("map_memory", &map_memory, py::arg("manager"), py::arg("tensor"),
          "A storage tensor's memory, or None where the host cannot see it; until unmap_memory.");
    m.def("unmap_memory", &unmap_memory, py::arg("manager"), py::arg("tensor"));
    m.def("prefer_cached", [](bool on) { prefer_cached(on); }, py::arg("on"),
          "Whether host tensors that this thread makes are to be fast for the host to read.");
    m.def("make_pipelines", &make_pipelines, py::arg("manager"), py::arg("wanted"), py::arg("threads"),
          "Compiles (spirv, constants, buffers, push_bytes) for the Algorithms to come, without the GIL.");
    m.def("fill_pipeline_cache", &fill_pipeline_cache, py::arg("manager"), py::arg("data"),
          "Starts the device's pipeline cache, before its first pipeline, from data that it once gave.");
    m.def("read_pipeline_cache", &read_pipeline_cache, py::arg("manager"), "The pipeline cache as data.");

    using no_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def(py::init<std::shared_ptr<kp::Manager>, std::shared_ptr<kp::Sequence>>(),
           py::arg("manager"), py::arg("sequence"))
      .def("begin", &Recording::begin)
      .def("dispatch", &Recording::dispatch, py::arg("algorithm"), py::arg("groups"), py::arg("push"))
      .def("copy", &Recording::copy, py::arg("source"), py::arg("target"), py::arg("source_word"),
           py::arg("target_word"), py::arg("words"))
      .def("barrier", &Recording::barrier, py::arg("source"), py::arg("destination"))
      .def("end", &Recording::end)
      .def("submit", &Recording::submit, no_gil())
      .def("wait", &Recording::wait, py::arg("timeout_s"))
      .def("done", &Recording::done, no_gil())
      .def_property_readonly("pending", &Recording::pending, no_gil())
      .def("duration_s", &Recording::duration_s, no_gil())
      .def("close", &Recording::close_within, py::arg("limit_s") = CLOSE_LIMIT_S, no_gil());
}
