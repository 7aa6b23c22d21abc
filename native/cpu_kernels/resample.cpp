// Resampling along one axis: every result is a weighted sum of a few elements.
//
//   resample(x, indices, weights, out, size, inner)
//       out[o, i, n] = sum over t of weights[i, t] * x[o, indices[i, t], n]
//
// Sums are of float64, as numpy has them; elements of weight 0 are not read. Examples:
// tests/ops/native/test_resample_loops.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <vector>

namespace {

// Of x (lead, size, inner), with `taps` for each of `outs` results.
struct Resampled {
    const float *x, *weights;
    const int32_t* indices;
    size_t lead, size, inner, outs, taps;
    float* out;
};

constexpr size_t BLOCK = 256; // values of a row whose sums stay in the first cache

INLINED size_t place(const Resampled& told, size_t tap)
{
    const int64_t last = static_cast<int64_t>(told.size) - 1;
    return std::min<int64_t>(std::max<int64_t>(told.indices[tap], 0), last);
}

// One value for each result: of the last axis.
INLINED void each_value(const Resampled& told, const float* x, float* out)
{
    for (size_t i = 0; i < told.outs; ++i) {
        double sum = 0;
        for (size_t tap = i * told.taps; tap < (i + 1) * told.taps; ++tap)
            if (told.weights[tap] != 0)
                sum += static_cast<double>(told.weights[tap]) * x[place(told, tap)];
        out[i] = static_cast<float>(sum);
    }
}

// Some values of a row for each result.
INLINED void each_row(const Resampled& told, const float* x, float* out, size_t count)
{
    double sums[BLOCK];
    for (size_t i = 0; i < told.outs; ++i) {
        std::fill(sums, sums + count, 0.0);
        for (size_t tap = i * told.taps; tap < (i + 1) * told.taps; ++tap) {
            const double weight = told.weights[tap];
            if (weight == 0)
                continue;
            const float* row = x + place(told, tap) * told.inner;
            for (size_t at = 0; at < count; ++at)
                sums[at] += weight * row[at];
        }
        for (size_t at = 0; at < count; ++at)
            out[i * told.inner + at] = static_cast<float>(sums[at]);
    }
}

INLINED void each_lead(const Resampled& told)
{
    for (size_t o = 0; o < told.lead; ++o) {
        const float* x = told.x + o * told.size * told.inner;
        float* out = told.out + o * told.outs * told.inner;
        if (told.inner == 1)
            each_value(told, x, out);
        else
            for (size_t at = 0; at < told.inner; at += BLOCK)
                each_row(told, x + at, out + at, std::min(BLOCK, told.inner - at));
    }
}

void resample_plain(const Resampled& told) { each_lead(told); }

#ifdef WIDE
WIDE void resample_wide(const Resampled& told) { each_lead(told); }
#else
constexpr auto resample_wide = resample_plain;
#endif

void resample(const py::buffer& x, const py::buffer& indices, const py::buffer& weights,
              const py::buffer& out, size_t size, size_t inner, bool wide)
{
    const py::buffer_info from = floats(x), each = floats(weights), to = floats(out, true);
    const py::buffer_info at = indices.request();
    const bool whole = at.format == "i" || at.format == "l"; // Windows has a long of 32 bits
    require(whole && at.itemsize == 4 && at.ndim == 2 && at.size == each.size
                && (at.size == 0
                    || (at.strides[1] == 4 && (at.shape[0] == 1 || at.strides[0] == 4 * at.shape[1])))
                && reinterpret_cast<uintptr_t>(at.ptr) % alignof(int32_t) == 0,
            "expected int32 indices and weights of one shape (out, taps)");
    require(size > 0 && inner > 0 && from.size % (size * inner) == 0, "expected whole axes of x");
    Resampled told{};
    told.lead = from.size / (size * inner);
    told.size = size;
    told.inner = inner;
    told.outs = at.shape[0];
    told.taps = at.shape[1];
    require(static_cast<size_t>(to.size) == told.lead * told.outs * inner,
            "expected a result for each row of indices");
    told.x = static_cast<const float*>(from.ptr);
    told.weights = static_cast<const float*>(each.ptr);
    told.indices = static_cast<const int32_t*>(at.ptr);
    told.out = static_cast<float*>(to.ptr);
    py::gil_scoped_release unlocked;
    wide && has_wide() ? resample_wide(told) : resample_plain(told);
}

} // namespace

void add_resample(py::module_& m)
{
    m.def("resample", &resample, py::arg("x"), py::arg("indices"), py::arg("weights"),
          py::arg("out"), py::arg("size"), py::arg("inner"), py::arg("wide") = true);
}
