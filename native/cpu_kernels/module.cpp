// Loops of the CPU backend: what takes numpy many passes over float32, in one, without the
// interpreter lock. No other module is needed.
#include "cpu_kernels/arrays.hpp"

#include <exception>

namespace {

void translate(std::exception_ptr thrown)
{
    try {
        std::rethrow_exception(thrown);
    } catch (const KeyError& error) {
        py::set_error(PyExc_KeyError, error.what());
    }
}

} // namespace

PYBIND11_MODULE(cpu_kernels, m)
{
    py::register_local_exception_translator(&translate);
    m.doc() = "What takes numpy many passes over float32, in one; operands are contiguous, and a "
              "result may lie where the first one does. Not wide: as processors without wider "
              "vectors do it.";
    add_conv(m);
    add_integer_codes(m);
    add_integer_conv(m);
    add_integer_matmul(m);
    add_integer_ways(m);
    add_norms(m);
    add_packed(m);
    add_program(m);
    add_recurrent(m);
    add_repack(m);
    add_resample(m);
    add_rounded(m);
    add_texts(m);
    add_values(m);
}
