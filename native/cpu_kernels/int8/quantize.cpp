// Quantization to int8 and uint8, with values stored as int32:
//
//   quantize(x, scale, zero, out, low, high, inner)         clip(round(x / scale) + zero)
//   requantize(x, bias, scale, out, zero, low, high, inner) clip(round((x + bias) * scale) + zero)
//
// inner: number of adjacent values of a channel. Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <algorithm>

namespace int8 {
namespace {

// Call with (first value, length, channel) of each run of values of one channel.
template <class Call>
void for_each_run(size_t count, size_t inner, size_t channels, const Call& call)
{
    if (channels == 1)
        return call(size_t{0}, count, size_t{0});
    for (size_t at = 0; at < count; at += inner)
        call(at, inner, at / inner % channels);
}

void require_channels(size_t count, size_t inner, size_t channels)
{
    require(channels > 0 && (channels == 1 || (inner > 0 && count % (inner * channels) == 0)),
            "expected whole channels");
}

void quantize(const py::buffer& x, const py::buffer& scale, const py::buffer& zero,
              const py::buffer& out, int32_t low, int32_t high, size_t inner,
              const std::string& target)
{
    const py::buffer_info from = floats(x), scales = floats(scale);
    const DenseArray<const int32_t> zeros(zero);
    const DenseArray<int32_t> to(out, true);
    const size_t count = from.size, scale_count = scales.size, zero_count = zeros.size();
    const size_t channels = std::max(scale_count, zero_count);
    require(count == to.size(), "expected as many results as values");
    require((scale_count == 1 || scale_count == channels)
                && (zero_count == 1 || zero_count == channels),
            "expected one scale and zero point, or one for each channel");
    require_channels(count, inner, channels);
    const Kernels& kernels = kernels_for(target);
    py::gil_scoped_release unlocked;
    const float* values = static_cast<const float*>(from.ptr);
    const float* scale_values = static_cast<const float*>(scales.ptr);
    for_each_run(count, inner, channels, [&](size_t at, size_t length, size_t channel) {
        kernels.quantize(values + at, scale_values[scale_count > 1 ? channel : 0],
                     zeros.data()[zero_count > 1 ? channel : 0], low, high, to.data() + at, length);
    });
}

void requantize(const py::buffer& x, const py::buffer& bias, const py::buffer& scale,
                const py::buffer& out, int32_t zero, int32_t low, int32_t high, size_t inner,
                const std::string& target)
{
    const DenseArray<const int32_t> from(x), biases(bias);
    const py::buffer_info scales = floats(scale);
    const DenseArray<int32_t> to(out, true);
    const size_t scale_count = scales.size, bias_count = biases.size();
    const size_t channels = std::max(scale_count, bias_count);
    require(from.size() == to.size(), "expected as many results as values");
    require((scale_count == 1 || scale_count == channels)
                && (bias_count == 1 || bias_count == channels),
            "expected one scale and bias, or one for each channel");
    require_channels(from.size(), inner, channels);
    const Kernels& kernels = kernels_for(target);
    py::gil_scoped_release unlocked;
    const float* scale_values = static_cast<const float*>(scales.ptr);
    for_each_run(from.size(), inner, channels, [&](size_t at, size_t length, size_t channel) {
        kernels.requantize(from.data() + at, biases.data()[bias_count > 1 ? channel : 0],
                           scale_values[scale_count > 1 ? channel : 0], zero, low, high,
                           to.data() + at, length);
    });
}

} // namespace
} // namespace int8

void add_int8_quantize(py::module_& m)
{
    m.def("quantize", &int8::quantize, py::arg("x"), py::arg("scale"), py::arg("zero"),
          py::arg("out"), py::arg("low"), py::arg("high"), py::arg("inner"),
          py::arg("target") = "");
    m.def("requantize", &int8::requantize, py::arg("x"), py::arg("bias"), py::arg("scale"),
          py::arg("out"), py::arg("zero"), py::arg("low"), py::arg("high"), py::arg("inner"),
          py::arg("target") = "");
}
