// Companion to Kompute's Python module: features that kp 0.9.0 lacks, on kp's own objects.
//
//   describe_devices()   every physical device, without opening one
//   Recording            a kp.Sequence with explicit barriers, asynchronous submission, waits
//                        without the GIL, timestamps, and checked VkResults
//   raise_error()        the errors that vk_hooks/checked_calls.hpp recorded inside kp's module
//
// No lock is held while acquiring the GIL, and none is held for long with the GIL. Rationale:
// docs/development/adr/0001-kompute-companion.md. Examples: tests/runtime/test_companion.py.
#include "companion/companion.hpp"

py::object kp_trace, kp_debug, kp_info, kp_warning, kp_error; // named by kp's headers, unused

PYBIND11_MODULE(companion, m)
{
    m.doc() = "Features that Kompute's Python module lacks, on its own objects.";
    companion::bind_errors(m);
    companion::bind_devices(m);
    companion::bind_memory(m);
    companion::bind_recording(m);
}
