// Kernels of quantized weights, included once for each instruction set, in a namespace of its own
// (quant_matmul.cpp): compilers lower vector types before they inline functions. Layout of the
// words: vksched/ops/quantized/quant_layout.py.

#include "cpu_kernels/quantized/scales.hpp"

// Look up the values of 4-bit quants.
INLINED F32x8 table_lookup(const U32x8& quants, const float (&table)[16])
{
#ifdef __clang__
    F32x8 values;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        values[lane] = table[quants[lane]];
    return values;
#else
    return __builtin_shuffle(load<F32x8>(table), load<F32x8>(table + LANES), quants);
#endif
}

// Return whether the quants of a vector are masked without a shift: they are scaled by 1 << 8 *
// index of the vector in a run. The zero point is then part of the offset.
template <class Format>
constexpr bool is_masked_in_place = Format::low_bits < 8 && Format::table == LINEAR;

template <class Format>
constexpr int32_t zero_point_of =
    is_masked_in_place<Format> && !Format::has_min ? Format::zero_point : 0;

template <class Format>
constexpr bool has_offsets = Format::has_min || zero_point_of<Format> != 0;

template <class Format>
constexpr float in_place_factor(uint32_t at)
{
    return is_masked_in_place<Format> ? static_cast<float>(1u << 8 * at) : 1.0f;
}

// Read 16-bit floats.
template <class Format>
INLINED void read_floats(const uint32_t* words, F32x8 (&quants)[VECTORS])
{
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const U16x8 bits = load<U16x8>(words + at * LANES / 2);
        if constexpr (Format::scale_kind == FLOAT16)
            quants[at] = from_float16(bits);
        else
            quants[at] = (F32x8)(__builtin_convertvector(bits, U32x8) << 16);
    }
}

INLINED void read_bytes(const uint32_t* words, F32x8 (&quants)[VECTORS])
{
    const U32x4 x = load<U32x4>(words), y = load<U32x4>(words + 4);
    const U32x4 first = __builtin_shufflevector(x, y, 0, 2, 4, 6);
    const U32x4 second = __builtin_shufflevector(x, y, 1, 3, 5, 7);
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const U32x8 up = broadcast4(at < 2 ? &first : &second)
                         << (24 - 16 * (at % 2) - column_bit_offsets(8));
        quants[at] = __builtin_convertvector((I32x8)up >> 24, F32x8);
    }
}

// Prefetch words that are read some tiles later: rows are too short for hardware prefetchers.
INLINED void prefetch(const uint32_t* words, uint32_t count)
{
    constexpr uint32_t ahead = 512, line = 16;
    for (uint32_t at = 0; at < count; at += line)
        __builtin_prefetch(words + ahead + at);
}

// Read the quants of run `number` of a tile, in order, each times the `in_place_factor` of its
// vector.
template <class Format>
INLINED void read_quants(const Tile& tile, uint32_t number, F32x8 (&quants)[VECTORS])
{
    constexpr uint32_t low = Format::low_bits, high = Format::high_bits;
    const uint32_t* planes = tile.front + Format::front;
    const uint32_t* words = planes + RUNS * high + number * low;
    if constexpr (low == 16) {
        read_floats<Format>(words, quants);
    } else if constexpr (low == 8) {
        read_bytes(words, quants);
    } else if constexpr (is_masked_in_place<Format>) {
        U32x8 all = columns_of<low>(words) & splat_byte((1u << low) - 1);
        if constexpr (high > 0)
            all |= (columns_of<high>(planes + number * high) & splat_byte((1u << high) - 1)) << low;
        if constexpr (Format::is_signed)
            all ^= splat_byte(Format::zero_point);
        for (uint32_t at = 0; at < VECTORS; ++at)
            quants[at] = __builtin_convertvector((I32x8)(all & 255u << 8 * at), F32x8);
    } else {
        const U32x8 columns = columns_of<low>(words);
        for (uint32_t at = 0; at < VECTORS; ++at)
            quants[at] = table_lookup(entries_of<low>(columns, at),
                                  Format::table == IQ4_NL ? iq4_nl_table : mxfp4_table);
    }
}

// Rows of x, divided by the in_place_factor of the quants, and their sums over each part.
template <class Format>
class PreparedActivations {
public:
    PreparedActivations(const float* x, size_t rows, size_t columns)
      : columns_(columns), tiles_((columns + TILE - 1) / TILE), lines_(rows * columns / RUN)
    {
        if (has_offsets<Format>)
            sums_.resize(rows * tiles_ * SUMS);
        for (size_t row = 0; row < rows; ++row) {
            if (has_offsets<Format>)
                sum_parts(x + row * columns, &sums_[row * tiles_ * SUMS]);
            for (size_t run = 0; run < columns / RUN; ++run)
                divide(x + row * columns + run * RUN, lines_[row * columns / RUN + run]);
        }
    }

    const float* row(size_t number) const { return lines_[number * columns_ / RUN].values; }

    // SUMS for each tile; unused ones are 0.
    const float* sums(size_t number) const { return sums_.data() + number * tiles_ * SUMS; }

private:
    struct alignas(64) Line { // a cache line: no vector is split over two
        float values[RUN];
    };

    void sum_parts(const float* x, float* sums) const
    {
        constexpr size_t values = TILE / Format::parts;
        for (size_t part = 0; part * values < columns_; ++part) {
            F32x8 sum = load<F32x8>(x + part * values);
            for (size_t at = LANES; at < values; at += LANES)
                sum += load<F32x8>(x + part * values + at);
            sums[part / Format::parts * SUMS + part % Format::parts] = horizontal_sum(sum);
        }
    }

    static void divide(const float* x, Line& to)
    {
        for (uint32_t v = 0; v < VECTORS; ++v)
            store(to.values + v * LANES,
                  load<F32x8>(x + v * LANES) * (1 / in_place_factor<Format>(v)));
    }

    size_t columns_, tiles_;
    std::vector<Line> lines_;
    std::vector<float> sums_;
};

// Multiply ROWS rows of x, from `first` on, with each row of the weight.
template <class Format, int ROWS>
INLINED void gemv_rows(const QuantMatmul& params, const PreparedActivations<Format>& x,
                       size_t first, float* out)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS, of_part = VECTORS / parts_of_run;
    const size_t tiles = (params.columns + TILE - 1) / TILE;
    for (size_t row = 0; row < params.rows; ++row) {
        F32x8 totals[ROWS]{};
        for (size_t at = 0; at < tiles; ++at) {
            const Tile tile = tile_of<Format>(params.words + row * params.row_words, at);
            prefetch(tile.front, tile_words_of<Format>());
            Parts parts;
            read_parts<Format, zero_point_of<Format>>(tile, parts);
            if (has_offsets<Format>)
                for (int i = 0; i < ROWS; ++i)
                    for (uint32_t part = 0; part < Format::parts; part += LANES)
                        totals[i] += load<F32x8>(parts.offset + part)
                            * load<F32x8>(x.sums(first + i) + at * SUMS + part);
            const size_t left = (params.columns - at * TILE) / RUN;
            for (uint32_t run = 0; run < (left < RUNS ? left : RUNS); ++run) {
                F32x8 quants[VECTORS];
                read_quants<Format>(tile, run, quants);
                for (int i = 0; i < ROWS; ++i) {
                    const float* x_run = x.row(first + i) + at * TILE + run * RUN;
                    for (uint32_t part = 0; part < parts_of_run; ++part) {
                        const uint32_t begin = part * of_part;
                        F32x8 sum = quants[begin] * load<F32x8>(x_run + begin * LANES);
                        for (uint32_t v = begin + 1; v < begin + of_part; ++v)
                            sum += quants[v] * load<F32x8>(x_run + v * LANES);
                        totals[i] += sum * parts.scale[run * parts_of_run + part];
                    }
                }
            }
        }
        for (int i = 0; i < ROWS; ++i)
            out[(first + i) * params.out_stride + row] =
                horizontal_sum(totals[i]) + (params.bias ? params.bias[row] : 0.0f);
    }
}

template <class Format>
void linear(const QuantMatmul& params, const float* x, size_t rows, float* out)
{
    const PreparedActivations<Format> activations(x, rows, params.columns);
    size_t row = 0;
    for (; row + 4 <= rows; row += 4)
        gemv_rows<Format, 4>(params, activations, row, out);
    for (; row < rows; ++row)
        gemv_rows<Format, 1>(params, activations, row, out);
}

template <class Format>
void dequantize(const QuantMatmul& params, const float*, size_t, float* out)
{
    constexpr uint32_t of_part = VECTORS * RUNS / Format::parts;
    Parts parts;
    for (size_t row = 0; row < params.rows; ++row)
        for (size_t run = 0; run < params.columns / RUN; ++run) {
            const Tile tile = tile_of<Format>(params.words + row * params.row_words, run / RUNS);
            if (run % RUNS == 0)
                read_parts<Format, zero_point_of<Format>>(tile, parts);
            F32x8 quants[VECTORS];
            read_quants<Format>(tile, run % RUNS, quants);
            for (uint32_t v = 0; v < VECTORS; ++v) {
                const size_t part = run % RUNS * (Format::parts / RUNS) + v / of_part;
                F32x8 values = quants[v] * (1 / in_place_factor<Format>(v)) * parts.scale[part];
                if (has_offsets<Format>)
                    values += parts.offset[part];
                store(out + row * params.columns + run * RUN + v * LANES, values);
            }
        }
}
