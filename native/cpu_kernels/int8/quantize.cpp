// Values and their codes of 8 bits:
//
//   quantize(x, scale, zero, out, low, high, inner)            clip(round(x / scale) + zero)
//   requantize(x, bias, scale, out, zero, low, high, inner)    the same of (x + bias) * scale
//
// Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <algorithm>

namespace integer {
namespace {

// Calls with each run of values that have one channel: its first value, length and channel.
template <class Call>
void each_run(size_t count, size_t inner, size_t channels, const Call& call)
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
              const std::string& name)
{
    const py::buffer_info from = floats(x), scales = floats(scale);
    const Line<const int32_t> zeros(zero);
    const Line<int32_t> to(out, true);
    const size_t count = from.size, of_scales = scales.size, of_zeros = zeros.size();
    const size_t channels = std::max(of_scales, of_zeros);
    require(count == to.size(), "expected as many codes as values");
    require((of_scales == 1 || of_scales == channels) && (of_zeros == 1 || of_zeros == channels),
            "expected one scale and zero point, or one for each channel");
    require_channels(count, inner, channels);
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const float* values = static_cast<const float*>(from.ptr);
    const float* own = static_cast<const float*>(scales.ptr);
    each_run(count, inner, channels, [&](size_t at, size_t length, size_t channel) {
        way.quantize(values + at, own[of_scales > 1 ? channel : 0],
                     zeros.data()[of_zeros > 1 ? channel : 0], low, high, to.data() + at, length);
    });
}

void requantize(const py::buffer& x, const py::buffer& bias, const py::buffer& scale,
                const py::buffer& out, int32_t zero, int32_t low, int32_t high, size_t inner,
                const std::string& name)
{
    const Line<const int32_t> from(x), biases(bias);
    const py::buffer_info scales = floats(scale);
    const Line<int32_t> to(out, true);
    const size_t of_scales = scales.size, of_biases = biases.size();
    const size_t channels = std::max(of_scales, of_biases);
    require(from.size() == to.size(), "expected as many codes as sums");
    require((of_scales == 1 || of_scales == channels) && (of_biases == 1 || of_biases == channels),
            "expected one scale and bias, or one for each channel");
    require_channels(from.size(), inner, channels);
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const float* own = static_cast<const float*>(scales.ptr);
    each_run(from.size(), inner, channels, [&](size_t at, size_t length, size_t channel) {
        way.requantize(from.data() + at, biases.data()[of_biases > 1 ? channel : 0],
                       own[of_scales > 1 ? channel : 0], zero, low, high, to.data() + at, length);
    });
}

} // namespace
} // namespace integer

void add_integer_codes(py::module_& m)
{
    m.def("quantize", &integer::quantize, py::arg("x"), py::arg("scale"), py::arg("zero"),
          py::arg("out"), py::arg("low"), py::arg("high"), py::arg("inner"), py::arg("way") = "");
    m.def("requantize", &integer::requantize, py::arg("x"), py::arg("bias"), py::arg("scale"),
          py::arg("out"), py::arg("zero"), py::arg("low"), py::arg("high"), py::arg("inner"),
          py::arg("way") = "");
}
