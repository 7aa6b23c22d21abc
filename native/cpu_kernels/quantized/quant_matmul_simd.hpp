// The loops over weights of few bits, included once for each way to compile them, in a namespace and
// with a target of its own (quant_matmul.cpp), as compilers lower vectors before they inline
// functions. Layout of the words: vksched/ops/quantized/gguf_formats.py.

#include "cpu_kernels/quantized/scales.hpp"

// The values that codes of four bits stand for.
INLINED Floats looked_up(const Words& codes, const float (&table)[16])
{
#ifdef __clang__
    Floats made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = table[codes[lane]];
    return made;
#else
    return __builtin_shuffle(loaded<Floats>(table), loaded<Floats>(table + LANES), codes);
#endif
}

// Whether the codes of a vector are read where they lie, by a mask: as numbers times 1 << 8 * its
// place in a run. Then shifts have the zero.
template <class Format>
constexpr bool in_place = Format::low < 8 && Format::table == NUMBERS;

template <class Format>
constexpr int32_t zero_of = in_place<Format> && !Format::shifts ? Format::zero : 0;

template <class Format>
constexpr bool has_shifts = Format::shifts || zero_of<Format> != 0;

template <class Format>
constexpr float times_of(uint32_t at)
{
    return in_place<Format> ? static_cast<float>(1u << 8 * at) : 1.0f;
}

// Numbers of 16 bits.
template <class Format>
INLINED void read_floats(const uint32_t* own, Floats (&codes)[VECTORS])
{
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const Shorts bits = loaded<Shorts>(own + at * LANES / 2);
        if constexpr (Format::kind == FLOATS)
            codes[at] = from_float16(bits);
        else
            codes[at] = (Floats)(__builtin_convertvector(bits, Words) << 16);
    }
}

INLINED void read_bytes(const uint32_t* own, Floats (&codes)[VECTORS])
{
    const Four x = loaded<Four>(own), y = loaded<Four>(own + 4);
    const Four first = __builtin_shufflevector(x, y, 0, 2, 4, 6);
    const Four second = __builtin_shufflevector(x, y, 1, 3, 5, 7);
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const Words up = repeated(at < 2 ? &first : &second) << (24 - 16 * (at % 2) - steps(8));
        codes[at] = __builtin_convertvector((Whole)up >> 24, Floats);
    }
}

// Has words that are read some tiles later brought near, wherever that is: rows are too short for
// processors to do so by themselves.
INLINED void fetch_ahead(const uint32_t* words, uint32_t count)
{
    constexpr uint32_t ahead = 512, line = 16;
    for (uint32_t at = 0; at < count; at += line)
        __builtin_prefetch(words + ahead + at);
}

// The codes of run `number` of a tile, in order, each times `times_of` its vector.
template <class Format>
INLINED void read_codes(const Tile& tile, uint32_t number, Floats (&codes)[VECTORS])
{
    constexpr uint32_t low = Format::low, high = Format::high;
    const uint32_t* planes = tile.front + Format::front;
    const uint32_t* own = planes + RUNS * high + number * low;
    if constexpr (low == 16) {
        read_floats<Format>(own, codes);
    } else if constexpr (low == 8) {
        read_bytes(own, codes);
    } else if constexpr (in_place<Format>) {
        Words all = columns_of<low>(own) & in_bytes((1u << low) - 1);
        if constexpr (high > 0)
            all |= (columns_of<high>(planes + number * high) & in_bytes((1u << high) - 1)) << low;
        if constexpr (Format::is_signed)
            all ^= in_bytes(Format::zero);
        for (uint32_t at = 0; at < VECTORS; ++at)
            codes[at] = __builtin_convertvector((Whole)(all & 255u << 8 * at), Floats);
    } else {
        const Words columns = columns_of<low>(own);
        for (uint32_t at = 0; at < VECTORS; ++at)
            codes[at] = looked_up(entries_of<low>(columns, at),
                                  Format::table == STEPS ? steps_table : powers_table);
    }
}

// Rows of x as codes want them, and their sums over what has one scale.
template <class Format>
class Given {
public:
    Given(const float* x, size_t rows, size_t columns)
      : columns_(columns), tiles_((columns + TILE - 1) / TILE), lines_(rows * columns / RUN)
    {
        if (has_shifts<Format>)
            sums_.resize(rows * tiles_ * SUMS);
        for (size_t row = 0; row < rows; ++row) {
            if (has_shifts<Format>)
                sum_parts(x + row * columns, &sums_[row * tiles_ * SUMS]);
            for (size_t run = 0; run < columns / RUN; ++run)
                divide(x + row * columns + run * RUN, lines_[row * columns / RUN + run]);
        }
    }

    const float* row(size_t number) const { return lines_[number * columns_ / RUN].values; }

    // SUMS for each tile, 0 where there are fewer.
    const float* sums(size_t number) const { return sums_.data() + number * tiles_ * SUMS; }

private:
    struct alignas(64) Line { // of a cache: no vector lies in two of them
        float values[RUN];
    };

    void sum_parts(const float* x, float* sums) const
    {
        constexpr size_t values = TILE / Format::parts;
        for (size_t part = 0; part * values < columns_; ++part) {
            Floats sum = loaded<Floats>(x + part * values);
            for (size_t at = LANES; at < values; at += LANES)
                sum += loaded<Floats>(x + part * values + at);
            sums[part / Format::parts * SUMS + part % Format::parts] = sum_of(sum);
        }
    }

    static void divide(const float* x, Line& to)
    {
        for (uint32_t v = 0; v < VECTORS; ++v)
            store(to.values + v * LANES,
                  loaded<Floats>(x + v * LANES) * (1 / times_of<Format>(v)));
    }

    size_t columns_, tiles_;
    std::vector<Line> lines_;
    std::vector<float> sums_;
};

// ROWS rows of x, from `first` on, times each row of the weight.
template <class Format, int ROWS>
INLINED void few_rows(const Packed& told, const Given<Format>& x, size_t first, float* out)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS, of_part = VECTORS / parts_of_run;
    const size_t tiles = (told.columns + TILE - 1) / TILE;
    for (size_t row = 0; row < told.rows; ++row) {
        Floats made[ROWS]{};
        for (size_t at = 0; at < tiles; ++at) {
            const Tile tile = tile_of<Format>(told.words + row * told.row_words, at);
            fetch_ahead(tile.front, words_of<Format>());
            Parts parts;
            read_parts<Format, zero_of<Format>>(tile, parts);
            if (has_shifts<Format>)
                for (int i = 0; i < ROWS; ++i)
                    for (uint32_t part = 0; part < Format::parts; part += LANES)
                        made[i] += loaded<Floats>(parts.shift + part)
                            * loaded<Floats>(x.sums(first + i) + at * SUMS + part);
            const size_t left = (told.columns - at * TILE) / RUN;
            for (uint32_t run = 0; run < (left < RUNS ? left : RUNS); ++run) {
                Floats codes[VECTORS];
                read_codes<Format>(tile, run, codes);
                for (int i = 0; i < ROWS; ++i) {
                    const float* own = x.row(first + i) + at * TILE + run * RUN;
                    for (uint32_t part = 0; part < parts_of_run; ++part) {
                        const uint32_t begin = part * of_part;
                        Floats sum = codes[begin] * loaded<Floats>(own + begin * LANES);
                        for (uint32_t v = begin + 1; v < begin + of_part; ++v)
                            sum += codes[v] * loaded<Floats>(own + v * LANES);
                        made[i] += sum * parts.scale[run * parts_of_run + part];
                    }
                }
            }
        }
        for (int i = 0; i < ROWS; ++i)
            out[(first + i) * told.out_row + row] =
                sum_of(made[i]) + (told.bias ? told.bias[row] : 0.0f);
    }
}

template <class Format>
void linear(const Packed& told, const float* x, size_t rows, float* out)
{
    const Given<Format> given(x, rows, told.columns);
    size_t row = 0;
    for (; row + 4 <= rows; row += 4)
        few_rows<Format, 4>(told, given, row, out);
    for (; row < rows; ++row)
        few_rows<Format, 1>(told, given, row, out);
}

template <class Format>
void unpack(const Packed& told, const float*, size_t, float* out)
{
    constexpr uint32_t of_part = VECTORS * RUNS / Format::parts;
    Parts parts;
    for (size_t row = 0; row < told.rows; ++row)
        for (size_t run = 0; run < told.columns / RUN; ++run) {
            const Tile tile = tile_of<Format>(told.words + row * told.row_words, run / RUNS);
            if (run % RUNS == 0)
                read_parts<Format, zero_of<Format>>(tile, parts);
            Floats codes[VECTORS];
            read_codes<Format>(tile, run % RUNS, codes);
            for (uint32_t v = 0; v < VECTORS; ++v) {
                const size_t part = run % RUNS * (Format::parts / RUNS) + v / of_part;
                Floats values = codes[v] * (1 / times_of<Format>(v)) * parts.scale[part];
                if (has_shifts<Format>)
                    values += parts.shift[part];
                store(out + row * told.columns + run * RUN + v * LANES, values);
            }
        }
}
