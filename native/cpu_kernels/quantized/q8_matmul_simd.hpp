// Products of weights of few bits and rows that are rounded to 8 bits, included once for each way to
// compile them, in a namespace and with a target of its own (q8_matmul.cpp).
//
//   few rows    codes of GROUP runs of a row of the weight, in two vectors (q8_gemv.hpp)
//   many rows   a panel: WIDTH rows of the weight beside each other, four codes of each in a word
//
// Sums of a run, or of half of one where it has two scales, are exact in 32 bits.

#include "cpu_kernels/quantized/q8_dot.hpp"
#include "cpu_kernels/quantized/q8_gemv.hpp"

// -- rounding ------------------------------------------------------------------------------------

// Whole numbers that are nearest, of two the even one.
INLINED Floats nearest(const Floats& x)
{
#if defined(WAY_DOT) || defined(WAY_MADD)
    return (Floats)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    Floats made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = std::nearbyint(x[lane]);
    return made;
#endif
}

INLINED uint32_t largest_of(Words sizes)
{
    uint32_t most = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        most = sizes[lane] > most ? sizes[lane] : most;
    return most;
}

INLINED int32_t total_of(const Whole& values)
{
    int32_t total = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        total += values[lane];
    return total;
}

typedef uint8_t RunBytes __attribute__((vector_size(RUN)));
typedef int8_t Eight __attribute__((vector_size(LANES)));

// Codes in the order of `value_at`, for each place.
template <uint32_t PARTS, uint32_t LOW, size_t... PLACES>
INLINED RunBytes placed(const RunBytes& codes, std::index_sequence<PLACES...>)
{
    return __builtin_shufflevector(codes, codes, value_at(PLACES, PARTS, LOW)...);
}

template <uint32_t PARTS, uint32_t LOW>
INLINED void round_run(const float* x, uint32_t run, Rounded& to)
{
    Floats values[VECTORS];
    Words sizes{};
    for (uint32_t v = 0; v < VECTORS; ++v) {
        values[v] = loaded<Floats>(x + v * LANES);
        const Words size = (Words)values[v] & 0x7fffffffu;
        sizes = size > sizes ? size : sizes; // bits of numbers, infinity and NaN in this order
    }
    const float largest = bits_as<float>(largest_of(sizes)), inverse = MOST_CODE / largest;
    const bool counts = largest >= LEAST_LARGEST && largest <= std::numeric_limits<float>::max();
    float scale = largest / MOST_CODE;
    if (!counts)
        scale = largest < LEAST_LARGEST ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    int8_t codes[RUN] = {};
    Whole halves[2] = {};
    for (uint32_t v = 0; counts && v < VECTORS; ++v) {
        const Whole whole = __builtin_convertvector(nearest(values[v] * inverse), Whole);
        const auto narrow = __builtin_convertvector(whole, Eight);
        std::memcpy(codes + v * LANES, &narrow, sizeof narrow);
        halves[v / (VECTORS / 2)] += whole;
    }
    const RunBytes made =
        placed<PARTS, LOW>(loaded<RunBytes>(codes), std::make_index_sequence<RUN>());
    std::memcpy(to.codes + run * RUN, &made, sizeof made);
    if (PARTS == RUNS) {
        to.scale[run] = scale;
        to.sums[run] = scale * static_cast<float>(total_of(halves[0] + halves[1]));
    } else {
        for (uint32_t half = 0; half < 2; ++half) {
            to.scale[2 * run + half] = scale;
            to.sums[2 * run + half] = scale * static_cast<float>(total_of(halves[half]));
        }
    }
}

template <uint32_t PARTS, uint32_t LOW>
void round_rows(const float* x, size_t rows, size_t columns, Rounded* to)
{
    const size_t tiles = (columns + TILE - 1) / TILE;
    for (size_t row = 0; row < rows; ++row, x += columns, to += tiles) {
        if (columns % TILE)
            to[tiles - 1] = Rounded{};
        for (size_t run = 0; run < columns / RUN; ++run)
            round_run<PARTS, LOW>(x + run * RUN, run % RUNS, to[run / RUNS]);
    }
}

// -- many rows -----------------------------------------------------------------------------------

// A run of WIDTH rows of a weight.
struct Panel {
    uint32_t codes[RUNS][WIDTH];
    float scale[2][WIDTH], shift[2][WIDTH];
};

template <class Format>
INLINED void fill_panel(const Packed& told, const WholeGroups<Format>& rows, size_t row,
                        size_t count, Panel* panel)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS;
    const size_t runs = told.columns / RUN;
    for (size_t r = 0; r < count; ++r) {
        Parts parts;
        for (size_t first = 0; first < runs; first += GROUP) {
            const uint32_t own = first % RUNS;
            const Tile tile = tile_of<Format>(rows[row + r], first / RUNS);
            if (own == 0)
                read_parts<Format, zero_of<Format>>(tile, parts);
            const Codes codes = codes_of<Format>(tile, own / GROUP);
            uint32_t words[GROUP * RUNS];
            std::memcpy(words, &codes, sizeof words);
            const uint32_t here = static_cast<uint32_t>(std::min<size_t>(GROUP, runs - first));
            for (uint32_t run = 0; run < here; ++run) {
                Panel& to = panel[first + run];
                for (uint32_t word = 0; word < RUNS; ++word) {
                    const uint32_t of_half = word / 4 * WIDTH + 4 * run + word % 4;
                    to.codes[word][r] = words[Format::low == 8 ? RUNS * run + word : of_half];
                }
                for (uint32_t part = 0; part < parts_of_run; ++part) {
                    to.scale[part][r] = parts.scale[(own + run) * parts_of_run + part];
                    if (has_shifts<Format>)
                        to.shift[part][r] = parts.shift[(own + run) * parts_of_run + part];
                }
            }
        }
    }
}

// What products with panels depend on of a format: several have the same.
template <uint32_t PARTS_OF_RUN, bool SIGNED, bool SHIFTS>
struct Kind {
    static constexpr uint32_t parts_of_run = PARTS_OF_RUN;
    static constexpr bool is_signed = SIGNED, has_shifts = SHIFTS;
};

template <class Format>
using KindOf = Kind<Format::parts / RUNS, signed_codes<Format>, has_shifts<Format>>;

// x: the first of ROWS rows, `tiles` apart.
template <class Kind, uint32_t ROWS>
INLINED void multiply(const Panel* panel, size_t runs, const Rounded* x, size_t tiles,
                      Wide (&made)[MOST_ROWS])
{
    constexpr uint32_t parts_of_run = Kind::parts_of_run;
    for (uint32_t r = 0; r < ROWS; ++r)
        made[r] = Wide{};
    for (size_t run = 0; run < runs; ++run) {
        const Panel& own = panel[run];
        const Rounded* rows = x + run / RUNS;
        const uint32_t at = run % RUNS;
        for (uint32_t part = 0; part < parts_of_run; ++part) {
            Sums sums[ROWS];
            for (uint32_t r = 0; r < ROWS; ++r)
                sums[r] = Sums{};
            for (uint32_t word = 0; word < RUNS; ++word) {
                if (parts_of_run == 2 && word / 2 % 2 != part)
                    continue;
                const Bytes codes = loaded<Bytes>(own.codes[word]);
                for (uint32_t r = 0; r < ROWS; ++r) {
                    const int8_t* four = rows[r * tiles].codes + at * RUN + 4 * word;
                    const Entries all = Entries{} + loaded<uint32_t>(four);
                    sums[r] = dot<Kind::is_signed>(sums[r], codes, (Bytes)all);
                }
            }
            const Wide scale = loaded<Wide>(own.scale[part]), shift = loaded<Wide>(own.shift[part]);
            const uint32_t of_tile = at * parts_of_run + part;
            for (uint32_t r = 0; r < ROWS; ++r) {
                const Wide values = __builtin_convertvector(sums[r], Wide);
                made[r] += values * (scale * rows[r * tiles].scale[of_tile]);
                if (Kind::has_shifts)
                    made[r] += shift * rows[r * tiles].sums[of_tile];
            }
        }
    }
}

// So many rows, as a constant that compilers unroll loops by.
template <class Kind, uint32_t ROWS = MOST_ROWS>
[[gnu::noinline]] void multiply_some(const Panel* panel, size_t runs, const Rounded* x, size_t tiles,
                           size_t rows, Wide (&made)[MOST_ROWS])
{
    if constexpr (ROWS > 1)
        if (rows < ROWS)
            return multiply_some<Kind, ROWS - 1>(panel, runs, x, tiles, rows, made);
    multiply<Kind, ROWS>(panel, runs, x, tiles, made);
}

template <class Format>
void linear(const Packed& told, const Rounded* x, size_t rows, float* out)
{
    const size_t tiles = (told.columns + TILE - 1) / TILE, runs = told.columns / RUN;
    const WholeGroups<Format> whole(told);
    if (rows < FEW_ROWS) {
        for (size_t row = 0; row < rows; ++row)
            one_row<Format>(told, whole, x + row * tiles, out + row * told.out_row);
        return;
    }
    std::vector<Panel> panel(runs);
    for (size_t first = 0; first < told.rows; first += WIDTH) {
        const size_t count = std::min<size_t>(WIDTH, told.rows - first);
        fill_panel<Format>(told, whole, first, count, panel.data());
        for (size_t row = 0; row < rows; row += MOST_ROWS) {
            const size_t own = std::min<size_t>(MOST_ROWS, rows - row);
            Wide made[MOST_ROWS];
            multiply_some<KindOf<Format>>(panel.data(), runs, x + row * tiles, tiles, own, made);
            for (size_t r = 0; r < own; ++r) {
                float* to = out + (row + r) * told.out_row + first;
                for (size_t c = 0; c < count; ++c)
                    to[c] = made[r][c] + (told.bias ? told.bias[first + c] : 0.0f);
            }
        }
    }
}
