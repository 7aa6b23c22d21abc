// Descriptions of physical devices, without opening one, and the heaps of an open one.
#include "vk_hooks/features.hpp"
#include "companion/descriptions.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
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

bool is_transfer_family(const VkQueueFamilyProperties& family)
{
    return (family.queueFlags & VK_QUEUE_TRANSFER_BIT) != 0 &&
           (family.queueFlags & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT)) == 0;
}

// Add the properties of Vulkan 1.1.
void describe_vulkan_1_1(VkPhysicalDevice device, uint32_t api_version,
                    const std::vector<std::string>& extensions, py::dict& entry, py::dict& limits)
{
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
    const bool has_driver = api_version >= VK_API_VERSION_1_2 ||
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

// Add the queue families, the compute family and the transfer-only family.
void describe_queues(VkPhysicalDevice device, py::dict& entry, py::dict& features)
{
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
            compute_family = py::int_(i); // the first one, which kp selects
            valid_bits = families[i].timestampValidBits;
        }
    }
    entry["queue_families"] = family_list;
    entry["compute_queue_family"] = compute_family;
    const auto transfer_family = std::find_if(families.begin(), families.end(), is_transfer_family);
    features["copy_queue"] = transfer_family != families.end();
    entry["copy_queue_family"] =
      transfer_family == families.end() ? py::object(py::none()) : py::int_(transfer_family - families.begin());
    entry["timestamp_valid_bits"] = valid_bits;
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
    entry["cores"] = modern ? core_count(device, extensions) : 0;
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
        describe_vulkan_1_1(device, properties.apiVersion, extensions, entry, limits);
    }
    describe_queues(device, entry, features);

    std::string reason;
    if (!modern) {
        reason = "expected Vulkan 1.1, got " + version_text(properties.apiVersion) +
              "; try a newer driver";
    } else if (entry["compute_queue_family"].is_none()) {
        reason = "expected a compute queue, got none";
    }
    entry["usable"] = reason.empty();
    entry["why"] = reason;
    return entry;
}

struct ScopedInstance {
    VkInstance instance = VK_NULL_HANDLE;
    ~ScopedInstance() { vkDestroyInstance(instance, nullptr); }
};

// Guarded by the GIL: the last instance that was kept.
VkInstance kept_instance = VK_NULL_HANDLE;

void release_drivers()
{
    VkInstance last = std::exchange(kept_instance, VK_NULL_HANDLE);
    py::gil_scoped_release no_gil;
    vkDestroyInstance(last, nullptr);
}

py::list describe_devices(bool keep)
{
    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.pApplicationName = "vksched";
    application.apiVersion = VK_API_VERSION_1_1;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    ScopedInstance owner;
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
    if (keep) {
        std::swap(owner.instance, kept_instance);
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
    m.def("describe_devices", &describe_devices, py::arg("keep") = false,
          "Every physical device in loader order; raises VulkanError if there is no driver. keep: "
          "their drivers stay loaded until let_drivers_go.");
    m.def("release_drivers", &release_drivers, "Unloads the drivers that describe_devices has kept.");
    m.def("memory_info", &memory_info, py::arg("manager"), "The current heaps of an open device.");
}

} // namespace companion
