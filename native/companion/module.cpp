// Companion to Kompute's Python module: what kp 0.9.0 lacks, on kp's own objects.
//
//   describe_devices()   every physical device, without opening one
//   Recording            a kp.Sequence recorded with barriers, submitted without blocking, waited
//                        for without the GIL, timed, every VkResult checked
//   raise_error()        what checked/calls.hpp noted inside kp's module
//
// Locks are never held while taking the GIL, and never taken with it held for long. Why all this
// exists: docs/development/adr/0001-kompute-companion.md. Examples: tests/runtime/test_companion.py.
#include "companion/companion.hpp"

py::object kp_trace, kp_debug, kp_info, kp_warning, kp_error; // named by kp's headers, unused

PYBIND11_MODULE(companion, m)
{
    m.doc() = "What Kompute's Python module lacks, on its own objects.";
    companion::bind_errors(m);
    companion::bind_devices(m);
    companion::bind_memory(m);
    companion::bind_recording(m);
}
