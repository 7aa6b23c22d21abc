// VkResults as exceptions, and the errors that vk_hooks/checked_calls.hpp recorded inside kp's
// module.
#include "companion/companion.hpp"
#include "platform.hpp"

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <type_traits>

namespace companion {

KpHooks kp_hooks;

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

void check(VkResult result, const char* call)
{
    if (result < VK_SUCCESS) {
        throw Failure(call, result);
    }
}

namespace {

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
        case VK_ERROR_MEMORY_MAP_FAILED:
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

void find_functions(const py::module_& kp_module)
{
    const std::string path = py::str(kp_module.attr("__file__"));
    const auto find = [&](auto& function, const char* name) {
        void* symbol = vksched::find_in_module(path.c_str(), name);
        if (symbol == nullptr) {
            throw py::import_error("expected kp built with native/*.cpp, got " + path);
        }
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(kp_hooks.take_error, "vksched_take_error");
    find(kp_hooks.features_enabled, "vksched_features_enabled");
    find(kp_hooks.set_robust_access, "vksched_set_robust_access");
    find(kp_hooks.robust_access_enabled, "vksched_robust_access_enabled");
    find(kp_hooks.timeline_semaphores_enabled, "vksched_timeline_semaphores_enabled");
    find(kp_hooks.host_query_reset_enabled, "vksched_host_query_reset_enabled");
    find(kp_hooks.set_prefer_cached, "vksched_set_prefer_cached");
    find(kp_hooks.set_required_subgroup_size, "vksched_set_required_subgroup_size");
    find(kp_hooks.compile_pipeline, "vksched_compile_pipeline");
    find(kp_hooks.fill_cache, "vksched_fill_cache");
    find(kp_hooks.read_cache, "vksched_read_cache");
    find(kp_hooks.count_pipelines, "vksched_count_pipelines");
    find(kp_hooks.set_max_idle_pipelines, "vksched_set_max_idle_pipelines");
}

// Raise the first error inside kp on this thread since the last call, if any.
void raise_error(const std::string& what)
{
    check(kp_hooks.take_error(), what.c_str());
}

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

void require_open(kp::Manager& manager)
{
    const VkResult result = kp_hooks.take_error();
    if (raw<VkDevice>(get(manager, ManagerDevice{})) == VK_NULL_HANDLE) {
        throw Failure("vkCreateDevice",
                      result < VK_SUCCESS ? result : VK_ERROR_INITIALIZATION_FAILED);
    }
}

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

void bind_errors(py::module_& m)
{
    find_functions(py::module_::import("vksched_native.kp"));
    vulkan_error = new_error(m, "VulkanError", PyExc_RuntimeError);
    device_lost = new_error(m, "DeviceLost", vulkan_error);
    out_of_memory = new_error(m, "OutOfMemory", vulkan_error);
    timeout_error = new_error(m, "Timeout", vulkan_error);
    py::register_local_exception_translator(translate);

    m.def("raise_error", &raise_error, py::arg("what"),
          "Raises the first Vulkan error inside kp on this thread since the last call, if any.");
    m.def("require_open", &require_open, py::arg("manager"), "Raises VulkanError if the device was not created.");
    m.def("leak",
          [](const py::object& object) {
              object.inc_ref();
              end_without_destructors();
          },
          py::arg("object"), "Leaks an object: its destructor never runs, not even at exit.");
}

} // namespace companion

void* vksched::find_in_module(const char* path, const char* name)
{
#if defined(_WIN32)
    const HMODULE library = GetModuleHandleA(path);
    return library ? reinterpret_cast<void*>(GetProcAddress(library, name)) : nullptr;
#else
    void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : nullptr;
#endif
}
