// Matmul of quantized weights and Q8 activations, included once for each instruction set, in a
// namespace of its own (q8_matmul.cpp).
//
//   GEMV   the quants of GROUP runs of a row of the weight in two vectors (q8_gemv.hpp)
//   GEMM   a panel: WIDTH rows of the weight interleaved, four quants of each in a word
//
// Sums of a run, or of half of one if it has two scales, are exact in 32 bits.

#include "cpu_kernels/quantized/q8_dot.hpp"
#include "cpu_kernels/quantized/q8_gemv.hpp"
#include "cpu_kernels/quantized/q8_panel.hpp"

// -- quantization of activations -----------------------------------------------------------------

// Round half to even.
INLINED F32x8 round_to_nearest(const F32x8& x)
{
#if defined(SIMD_AVX512_VNNI) || defined(SIMD_AVX2)
    return (F32x8)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    F32x8 result;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        result[lane] = std::nearbyint(x[lane]);
    return result;
#endif
}

INLINED uint32_t horizontal_max(U32x8 sizes)
{
    uint32_t largest_size = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        largest_size = sizes[lane] > largest_size ? sizes[lane] : largest_size;
    return largest_size;
}

INLINED int32_t horizontal_sum(const I32x8& values)
{
    int32_t total = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        total += values[lane];
    return total;
}

typedef uint8_t RunBytes __attribute__((vector_size(RUN)));
typedef int8_t Eight __attribute__((vector_size(LANES)));

// Permute quants to the order of `value_index`.
template <uint32_t PARTS, uint32_t LOW, size_t... PLACES>
INLINED RunBytes permute_quants(const RunBytes& quants, std::index_sequence<PLACES...>)
{
    return __builtin_shufflevector(quants, quants, value_index(PLACES, PARTS, LOW)...);
}

template <uint32_t PARTS, uint32_t LOW>
INLINED void quantize_run(const float* x, uint32_t run, Q8Tile& to)
{
    F32x8 values[VECTORS];
    U32x8 sizes{};
    for (uint32_t v = 0; v < VECTORS; ++v) {
        values[v] = load<F32x8>(x + v * LANES);
        const U32x8 size = (U32x8)values[v] & 0x7fffffffu;
        sizes = size > sizes ? size : sizes; // as integers, finite < infinity < NaN
    }
    const float largest = bit_cast<float>(horizontal_max(sizes)), inverse = MAX_QUANT / largest;
    const bool counts = largest >= MIN_ABSMAX && largest <= std::numeric_limits<float>::max();
    float scale = largest / MAX_QUANT;
    if (!counts)
        scale = largest < MIN_ABSMAX ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    int8_t quants[RUN] = {};
    I32x8 halves[2] = {};
    for (uint32_t v = 0; counts && v < VECTORS; ++v) {
        const I32x8 padded_rows =
            __builtin_convertvector(round_to_nearest(values[v] * inverse), I32x8);
        const auto narrow = __builtin_convertvector(padded_rows, Eight);
        std::memcpy(quants + v * LANES, &narrow, sizeof narrow);
        halves[v / (VECTORS / 2)] += padded_rows;
    }
    const RunBytes result =
        permute_quants<PARTS, LOW>(load<RunBytes>(quants), std::make_index_sequence<RUN>());
    std::memcpy(to.quants + run * RUN, &result, sizeof result);
    if (PARTS == RUNS) {
        to.scale[run] = scale;
        to.sums[run] = scale * static_cast<float>(horizontal_sum(halves[0] + halves[1]));
    } else {
        for (uint32_t half = 0; half < 2; ++half) {
            to.scale[2 * run + half] = scale;
            to.sums[2 * run + half] = scale * static_cast<float>(horizontal_sum(halves[half]));
        }
    }
}

template <uint32_t PARTS, uint32_t LOW>
void quantize_rows(const float* x, size_t rows, size_t columns, Q8Tile* to)
{
    const size_t tiles = (columns + TILE - 1) / TILE;
    for (size_t row = 0; row < rows; ++row, x += columns, to += tiles) {
        if (columns % TILE)
            to[tiles - 1] = Q8Tile{};
        for (size_t run = 0; run < columns / RUN; ++run)
            quantize_run<PARTS, LOW>(x + run * RUN, run % RUNS, to[run / RUNS]);
    }
}

// -- GEMM ----------------------------------------------------------------------------------------

// The properties of a format that GEMM depends on; several formats share a kind.
template <uint32_t PARTS_OF_RUN, bool SIGNED, bool SHIFTS>
struct PanelKind {
    static constexpr uint32_t parts_of_run = PARTS_OF_RUN;
    static constexpr bool is_signed = SIGNED, has_offsets = SHIFTS;
};

template <class Format>
using PanelKindOf = PanelKind<Format::parts / RUNS, has_signed_quants<Format>, has_offsets<Format>>;

// x: the first of ROWS rows, which are `tiles` tiles apart.
template <class PanelKind, uint32_t ROWS>
INLINED void gemm_panel(const Panel* panel, size_t runs, const Q8Tile* x, size_t tiles,
                      F32xN (&result)[MAX_ROWS])
{
    constexpr uint32_t parts_of_run = PanelKind::parts_of_run;
    F32xN total[ROWS] = {}; // in registers; compilers keep `result` in memory
    for (size_t run = 0; run < runs; ++run) {
        const Panel& panel_run = panel[run];
        const Q8Tile* rows = x + run / RUNS;
        const uint32_t run_of_tile = run % RUNS;
        for (uint32_t part = 0; part < parts_of_run; ++part) {
            I32xN sums[ROWS];
            for (uint32_t r = 0; r < ROWS; ++r)
                sums[r] = I32xN{};
            for (uint32_t word = 0; word < RUNS; ++word) {
                if (parts_of_run == 2 && word / 2 % 2 != part)
                    continue;
                const U8xN quants = load<U8xN>(panel_run.quants[word]);
                for (uint32_t r = 0; r < ROWS; ++r) {
                    const int8_t* four = rows[r * tiles].quants + run_of_tile * RUN + 4 * word;
                    const U32xN all = U32xN{} + load<uint32_t>(four);
                    sums[r] = dot<PanelKind::is_signed>(sums[r], quants, (U8xN)all);
                }
            }
            const F32xN scale = load<F32xN>(panel_run.scale[part]),
                        offset = load<F32xN>(panel_run.offset[part]);
            const uint32_t of_tile = run_of_tile * parts_of_run + part;
            for (uint32_t r = 0; r < ROWS; ++r) {
                const F32xN values = __builtin_convertvector(sums[r], F32xN);
                total[r] += values * (scale * rows[r * tiles].scale[of_tile]);
                if (PanelKind::has_offsets)
                    total[r] += offset * rows[r * tiles].sums[of_tile];
            }
        }
    }
    std::copy_n(total, ROWS, result);
}

// Dispatch to a number of rows that is a compile-time constant, so that loops are unrolled.
template <class PanelKind, uint32_t ROWS = MAX_ROWS>
[[gnu::noinline]] void gemm_panel_up_to(const Panel* panel, size_t runs, const Q8Tile* x,
                                        size_t tiles, size_t rows, F32xN (&result)[MAX_ROWS])
{
    if constexpr (ROWS > 1)
        if (rows < ROWS)
            return gemm_panel_up_to<PanelKind, ROWS - 1>(panel, runs, x, tiles, rows, result);
    gemm_panel<PanelKind, ROWS>(panel, runs, x, tiles, result);
}

template <class Format>
void linear(const QuantMatmul& params, const Q8Tile* x, size_t rows, float* out)
{
    const size_t tiles = (params.columns + TILE - 1) / TILE, runs = params.columns / RUN;
    const PaddedRows<Format> padded_rows(params);
    if (rows < MIN_GEMM_ROWS) {
        gemv_rows<Format>(params, padded_rows, x, tiles, rows, out);
        return;
    }
    std::vector<Panel> panel(runs);
    for (size_t first = 0; first < params.rows; first += WIDTH) {
        const size_t count = std::min<size_t>(WIDTH, params.rows - first);
        pack_panel<Format>(params, padded_rows, first, count, panel.data());
        for (size_t row = 0; row < rows; row += MAX_ROWS) {
            const size_t row_count = std::min<size_t>(MAX_ROWS, rows - row);
            F32xN result[MAX_ROWS];
            gemm_panel_up_to<PanelKindOf<Format>>(panel.data(), runs, x + row * tiles, tiles,
                                                  row_count, result);
            for (size_t r = 0; r < row_count; ++r) {
                float* to = out + (row + r) * params.out_stride + first;
                for (size_t c = 0; c < count; ++c)
                    to[c] = result[r][c] + (params.bias ? params.bias[first + c] : 0.0f);
            }
        }
    }
}
