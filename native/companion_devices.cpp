// What each physical device can do, without opening one, and the heaps of an open one.
#include "companion.hpp"
#include "features.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace companion {

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device)
{
    uint32_t count = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
    std::vector<VkQueueFamilyProperties> families(count);
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
    families.resize(count);
    return families;
}

namespace {

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

bool has(const std::vector<std::string>& names, const char* name)
{
    return std::find(names.begin(), names.end(), name) != names.end();
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

// Returns a cooperative matrix product as text, as "float16*float16+float32 16x16x16": types of A, B
// and the sum, rows, columns and depth. Empty for what no kernel uses.
std::string matrix_text(const VkCooperativeMatrixPropertiesKHR& shape)
{
    constexpr VkScopeKHR SUBGROUP = static_cast<VkScopeKHR>(3);
    const auto type = [](VkComponentTypeKHR code) -> std::string {
        switch (static_cast<int>(code)) {
            case 0:
                return "float16";
            case 1:
                return "float32";
            case 3:
                return "int8";
            case 5:
                return "int32";
            case 7:
                return "uint8";
            case 9:
                return "uint32";
            case 1000141000:
                return "bfloat16";
            default:
                return "";
        }
    };
    const std::string a = type(shape.AType), b = type(shape.BType), sum = type(shape.CType);
    const bool useful = !a.empty() && !b.empty() && !sum.empty() && shape.scope == SUBGROUP &&
                        shape.CType == shape.ResultType && !shape.saturatingAccumulation;
    const auto number = [](uint32_t value) { return std::to_string(value); };
    return useful ? a + "*" + b + "+" + sum + " " + number(shape.MSize) + "x" +
                      number(shape.NSize) + "x" + number(shape.KSize)
                  : "";
}

py::list describe_matrices(VkInstance instance, VkPhysicalDevice device)
{
    py::list found;
    const auto ask = reinterpret_cast<PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
      vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
    uint32_t count = 0;
    if (ask == nullptr || ask(device, &count, nullptr) != VK_SUCCESS) {
        return found;
    }
    VkCooperativeMatrixPropertiesKHR empty{};
    empty.sType = static_cast<VkStructureType>(1000506001);
    std::vector<VkCooperativeMatrixPropertiesKHR> shapes(count, empty);
    if (ask(device, &count, shapes.data()) < VK_SUCCESS) {
        return found;
    }
    shapes.resize(std::min<size_t>(count, shapes.size()));
    for (const VkCooperativeMatrixPropertiesKHR& shape : shapes) {
        const std::string text = matrix_text(shape);
        if (!text.empty() && !found.contains(text)) {
            found.append(text);
        }
    }
    return found;
}

template<typename Properties>
Properties properties_of(VkPhysicalDevice device, VkStructureType type)
{
    Properties found{};
    found.sType = type;
    VkPhysicalDeviceProperties2 all{};
    all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    all.pNext = &found;
    vkGetPhysicalDeviceProperties2(device, &all);
    found.pNext = nullptr;
    return found;
}

// Returns whether 4 products of 8 bits and their sum are one instruction, as far as the device says.
bool dots_fast(VkPhysicalDevice device)
{
    const auto dot = properties_of<VkPhysicalDeviceShaderIntegerDotProductProperties>(
      device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES);
    return dot.integerDotProduct4x8BitPackedSignedAccelerated == VK_TRUE;
}

// Returns the subgroup sizes, powers of two, that a compute kernel may require.
std::vector<uint32_t> sizes_to_require(VkPhysicalDevice device)
{
    const auto sizes = properties_of<VkPhysicalDeviceSubgroupSizeControlPropertiesEXT>(
      device, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT);
    std::vector<uint32_t> found;
    if (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) {
        for (uint32_t size = std::max(1u, sizes.minSubgroupSize); size <= sizes.maxSubgroupSize;
             size *= 2) {
            found.push_back(size);
        }
    }
    return found;
}

// What a device of Vulkan 1.1 has beyond it; each name is a field of Limits.
py::dict describe_features(VkInstance instance, VkPhysicalDevice device,
                           const std::vector<std::string>& extensions)
{
    const vksched::Features found(device);
    py::dict entry;
    entry["int64"] = found.core.features.shaderInt64 == VK_TRUE;
    entry["int16"] = found.core.features.shaderInt16 == VK_TRUE;
    entry["float16"] = found.arithmetic.shaderFloat16 == VK_TRUE;
    entry["int8"] = found.arithmetic.shaderInt8 == VK_TRUE;
    entry["storage16"] = found.storage16.storageBuffer16BitAccess == VK_TRUE;
    entry["storage8"] = found.storage8.storageBuffer8BitAccess == VK_TRUE;
    const bool dots = found.dot.shaderIntegerDotProduct == VK_TRUE;
    entry["integer_dot"] = dots;
    entry["integer_dot_fast"] = dots && dots_fast(device);
    entry["bfloat16"] = found.bfloat16.shaderBFloat16Type == VK_TRUE;
    const bool matrices = found.matrices.cooperativeMatrix == VK_TRUE &&
                          found.memory_model.vulkanMemoryModel == VK_TRUE;
    entry["matrices"] = matrices ? describe_matrices(instance, device) : py::list();
    const bool sizes = found.subgroup_sizes.subgroupSizeControl == VK_TRUE &&
                       found.subgroup_sizes.computeFullSubgroups == VK_TRUE;
    entry["subgroup_sizes"] = sizes ? sizes_to_require(device) : std::vector<uint32_t>{};
    entry["memory_budget"] = has(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    entry["host_import"] = has(extensions, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    return entry;
}

bool is_copy_family(const VkQueueFamilyProperties& family)
{
    return (family.queueFlags & VK_QUEUE_TRANSFER_BIT) != 0 &&
           (family.queueFlags & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT)) == 0;
}

py::dict describe_device(VkInstance instance, VkPhysicalDevice device, uint32_t index)
{
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(device, &properties);
    const bool modern = properties.apiVersion >= VK_API_VERSION_1_1;
    const std::vector<std::string> extensions = vksched::device_extensions(device);

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
    for (const char* key : { "driver_id", "uuid", "driver_uuid", "luid", "pci_bus",
                            "import_alignment" }) {
        entry[key] = py::none();
    }
    py::dict limits = describe_limits(properties.limits);
    entry["limits"] = limits;
    limits["maxMemoryAllocationSize"] = py::none();
    limits["maxPerSetDescriptors"] = py::none();
    entry["subgroup_size"] = 1;
    entry["subgroup_operations"] = py::list();
    entry["subgroup_in_compute"] = false;
    py::dict features;
    entry["features"] = features;
    entry["extensions"] = extensions;
    entry["timestamp_period_ns"] = properties.limits.timestampPeriod;
    entry["heaps"] = describe_heaps(device, modern && has(extensions, "VK_EXT_memory_budget"));

    if (modern) {
        features = describe_features(instance, device, extensions);
        entry["features"] = features;
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
            tail = &pci.pNext;
        }
        VkPhysicalDeviceExternalMemoryHostPropertiesEXT imports{};
        imports.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
        const bool has_imports = has(extensions, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
        if (has_imports) {
            *tail = &imports;
        }
        vkGetPhysicalDeviceProperties2(device, &all);

        if (has_imports) {
            entry["import_alignment"] = imports.minImportedHostPointerAlignment;
        }
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
    const auto copies = std::find_if(families.begin(), families.end(), is_copy_family);
    features["copy_queue"] = copies != families.end();
    entry["copy_queue_family"] =
      copies == families.end() ? py::object(py::none()) : py::int_(copies - families.begin());
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
        found.append(describe_device(owner.instance, devices[i], i));
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
    return describe_heaps(device, has(vksched::device_extensions(device), "VK_EXT_memory_budget"));
}

} // namespace

void bind_devices(py::module_& m)
{
    m.def("loader_version", &loader_version, "Vulkan version of the loader.");
    m.def("describe_devices", &describe_devices,
          "Every physical device in loader order; raises VulkanError where there is no driver.");
    m.def("memory_info", &memory_info, py::arg("manager"), "Heaps of an open device, as they are now.");
}

} // namespace companion
