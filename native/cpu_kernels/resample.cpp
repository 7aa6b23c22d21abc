// Resampling along one axis: each result is a weighted sum of a few elements (taps).
//
//   resample(x, indices, weights, out, size, inner)
//       out[o, i, n] = sum over t of weights[i, t] * x[o, indices[i, t], n]
//
// Sums are float64, as numpy's. Elements of weight 0 are not read. Examples:
// tests/ops/native/test_resample_loops.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <vector>

namespace {

// x: (lead, size, inner). indices, weights: (out_size, taps).
struct ResampleParams {
    const float *x, *weights;
    const int32_t* indices;
    size_t lead, size, inner, out_size, taps;
    float* out;
};

constexpr size_t BLOCK = 256; // inner values of a block: their sums stay in the L1 cache

INLINED size_t source_index(const ResampleParams& params, size_t tap)
{
    const int64_t last = static_cast<int64_t>(params.size) - 1;
    return std::min<int64_t>(std::max<int64_t>(params.indices[tap], 0), last);
}

// inner = 1: one value for each result.
INLINED void resample_values(const ResampleParams& params, const float* x, float* out)
{
    for (size_t i = 0; i < params.out_size; ++i) {
        double sum = 0;
        for (size_t tap = i * params.taps; tap < (i + 1) * params.taps; ++tap)
            if (params.weights[tap] != 0)
                sum += static_cast<double>(params.weights[tap]) * x[source_index(params, tap)];
        out[i] = static_cast<float>(sum);
    }
}

// A block of `count` inner values for each result.
INLINED void resample_rows(const ResampleParams& params, const float* x, float* out, size_t count)
{
    double sums[BLOCK];
    for (size_t i = 0; i < params.out_size; ++i) {
        std::fill(sums, sums + count, 0.0);
        for (size_t tap = i * params.taps; tap < (i + 1) * params.taps; ++tap) {
            const double weight = params.weights[tap];
            if (weight == 0)
                continue;
            const float* row = x + source_index(params, tap) * params.inner;
            for (size_t at = 0; at < count; ++at)
                sums[at] += weight * row[at];
        }
        for (size_t at = 0; at < count; ++at)
            out[i * params.inner + at] = static_cast<float>(sums[at]);
    }
}

INLINED void resample_all(const ResampleParams& params)
{
    for (size_t o = 0; o < params.lead; ++o) {
        const float* x = params.x + o * params.size * params.inner;
        float* out = params.out + o * params.out_size * params.inner;
        if (params.inner == 1)
            resample_values(params, x, out);
        else
            for (size_t at = 0; at < params.inner; at += BLOCK)
                resample_rows(params, x + at, out + at, std::min(BLOCK, params.inner - at));
    }
}

void resample_baseline(const ResampleParams& params) { resample_all(params); }

#ifdef TARGET_AVX2
TARGET_AVX2 void resample_avx2(const ResampleParams& params) { resample_all(params); }
#else
constexpr auto resample_avx2 = resample_baseline;
#endif

void resample(const py::buffer& x, const py::buffer& indices, const py::buffer& weights,
              const py::buffer& out, size_t size, size_t inner, bool wide)
{
    const py::buffer_info from = floats(x), weight_view = floats(weights), to = floats(out, true);
    const py::buffer_info at = indices.request();
    const bool is_int32 = at.format == "i" || at.format == "l"; // long has 32 bits on Windows
    require(
        is_int32 && at.itemsize == 4 && at.ndim == 2 && at.size == weight_view.size
            && (at.size == 0
                || (at.strides[1] == 4 && (at.shape[0] == 1 || at.strides[0] == 4 * at.shape[1])))
            && reinterpret_cast<uintptr_t>(at.ptr) % alignof(int32_t) == 0,
        "expected int32 indices and weights of one shape (out, taps)");
    require(size > 0 && inner > 0 && from.size % (size * inner) == 0, "expected whole axes of x");
    ResampleParams params{};
    params.lead = from.size / (size * inner);
    params.size = size;
    params.inner = inner;
    params.out_size = at.shape[0];
    params.taps = at.shape[1];
    require(static_cast<size_t>(to.size) == params.lead * params.out_size * inner,
            "expected a result for each row of indices");
    params.x = static_cast<const float*>(from.ptr);
    params.weights = static_cast<const float*>(weight_view.ptr);
    params.indices = static_cast<const int32_t*>(at.ptr);
    params.out = static_cast<float*>(to.ptr);
    py::gil_scoped_release unlocked;
    wide && has_avx2() ? resample_avx2(params) : resample_baseline(params);
}

} // namespace

void add_resample(py::module_& m)
{
    m.def("resample", &resample, py::arg("x"), py::arg("indices"), py::arg("weights"),
          py::arg("out"), py::arg("size"), py::arg("inner"), py::arg("wide") = true);
}
