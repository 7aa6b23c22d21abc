// The module of the CPU kernels: single-pass kernels for ops that take numpy many passes. They
// release the interpreter lock and need no other module.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/vectors.hpp"

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
    m.doc() = "Single-pass CPU kernels. Operands are contiguous; a result may alias the first "
              "operand. wide=False selects the baseline instruction set.";
#ifdef HAS_VECTOR_EXTENSIONS
    m.attr("has_vector_extensions") = true;
#else
    m.attr("has_vector_extensions") = false;
#endif
    add_conv(m);
    add_int8_quantize(m);
    add_int8_conv(m);
    add_int8_matmul(m);
    add_int8_targets(m);
    add_norms(m);
    add_quantized(m);
    add_program(m);
    add_rnn(m);
    add_repack(m);
    add_resample(m);
    add_q8(m);
    add_gguf_strings(m);
    add_unary(m);
}
