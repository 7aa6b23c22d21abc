// The loops over weights of few bits, included once for each way to compile them, in a namespace and
// with a target of its own (packed.cpp), as compilers lower vectors before they inline
// functions. Layout of the words: vksched/ops/products/blocks.py.

#include "loops/packed/scales.hpp"

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

// The codes of run `number` of a tile, in order.
template <class Format>
INLINED void read_codes(const Tile& tile, uint32_t number, Floats (&codes)[VECTORS])
{
    constexpr uint32_t low = Format::low, high = Format::high;
    const uint32_t* planes = tile.front + Format::front;
    const uint32_t* own = planes + RUNS * high + number * low;
    if constexpr (Format::kind == FLOATS || Format::kind == BFLOATS) {
        for (uint32_t at = 0; at < VECTORS; ++at) {
            const Shorts bits = loaded<Shorts>(own + at * LANES / 2);
            if constexpr (Format::kind == FLOATS)
                codes[at] = from_float16(bits);
            else
                codes[at] = (Floats)(__builtin_convertvector(bits, Words) << 16);
        }
        return;
    }
    Words columns{}, later{}, above{};
    if (low == 8) {
        const Four x = loaded<Four>(own), y = loaded<Four>(own + 4);
        const Four first = __builtin_shufflevector(x, y, 0, 2, 4, 6);
        const Four second = __builtin_shufflevector(x, y, 1, 3, 5, 7);
        columns = repeated(&first);
        later = repeated(&second);
    } else if (!Format::is_signed) {
        columns = columns_of<low>(own);
    } else {
        columns = repeated(own);
    }
    if (high)
        above = columns_of<high>(planes + number * high);
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const uint32_t entry = at * (LANES / 4); // of the first four lanes
        const Words& from = low == 8 && entry >= 4 ? later : columns;
        const uint32_t first = low == 8 ? entry % 4 : entry;
        if (Format::is_signed) {
            const Words up = from << (32 - low - low * first - steps(low));
            codes[at] = __builtin_convertvector((Whole)up >> (32 - low), Floats);
        } else {
            Words code = entries_of<low>(columns, at);
            if (high)
                code |= entries_of<high>(above, at) << low;
            if constexpr (Format::table == NUMBERS && Format::shifts)
                codes[at] = __builtin_convertvector((Whole)code, Floats); // shifts have the zero
            else if constexpr (Format::table == NUMBERS)
                codes[at] = __builtin_convertvector((Whole)code - Format::zero, Floats);
            else
                codes[at] = looked_up(code, Format::table == STEPS ? steps_table : powers_table);
        }
    }
}

// Sums of x over what has one scale: SUMS for each tile, 0 where there are fewer.
template <class Format>
INLINED void sum_parts(const float* x, size_t columns, float* sums)
{
    constexpr size_t values = TILE / Format::parts;
    for (size_t part = 0; part * values < columns; ++part) {
        float sum = 0;
        for (size_t at = 0; at < values; ++at)
            sum += x[part * values + at];
        sums[part / Format::parts * SUMS + part % Format::parts] = sum;
    }
}

// ROWS rows of x times each row of the weight.
template <class Format, int ROWS>
INLINED void few_rows(const Packed& told, const float* x, float* out, const float* sums)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS, of_part = VECTORS / parts_of_run;
    const size_t tiles = (told.columns + TILE - 1) / TILE;
    for (size_t row = 0; row < told.rows; ++row) {
        Floats made[ROWS]{};
        for (size_t at = 0; at < tiles; ++at) {
            const Tile tile = tile_of<Format>(told.words + row * told.row_words, at);
            Parts parts;
            read_scales<Format>(tile, parts);
            if (Format::shifts)
                for (int i = 0; i < ROWS; ++i)
                    for (uint32_t part = 0; part < Format::parts; part += LANES)
                        made[i] += loaded<Floats>(parts.shift + part)
                            * loaded<Floats>(sums + (i * tiles + at) * SUMS + part);
            const size_t left = (told.columns - at * TILE) / RUN;
            for (uint32_t run = 0; run < (left < RUNS ? left : RUNS); ++run) {
                Floats codes[VECTORS];
                read_codes<Format>(tile, run, codes);
                for (int i = 0; i < ROWS; ++i) {
                    const float* own = x + i * told.columns + at * TILE + run * RUN;
                    for (uint32_t part = 0; part < parts_of_run; ++part) {
                        const uint32_t first = part * of_part;
                        Floats sum = codes[first] * loaded<Floats>(own + first * LANES);
                        for (uint32_t v = first + 1; v < first + of_part; ++v)
                            sum += codes[v] * loaded<Floats>(own + v * LANES);
                        made[i] += sum * parts.scale[run * parts_of_run + part];
                    }
                }
            }
        }
        for (int i = 0; i < ROWS; ++i)
            out[i * told.out_row + row] = sum_of(made[i]) + (told.bias ? told.bias[row] : 0.0f);
    }
}

template <class Format>
void linear(const Packed& told, const float* x, size_t rows, float* out)
{
    const size_t tiles = (told.columns + TILE - 1) / TILE;
    std::vector<float> sums(Format::shifts ? rows * tiles * SUMS : 0);
    if (Format::shifts)
        for (size_t row = 0; row < rows; ++row)
            sum_parts<Format>(x + row * told.columns, told.columns, &sums[row * tiles * SUMS]);
    for (size_t row = 0; row < rows;) {
        const float* from = x + row * told.columns;
        const float* own = Format::shifts ? &sums[row * tiles * SUMS] : nullptr;
        float* to = out + row * told.out_row;
        if (rows - row >= 4) {
            few_rows<Format, 4>(told, from, to, own);
            row += 4;
        } else {
            few_rows<Format, 1>(told, from, to, own);
            row += 1;
        }
    }
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
                read_scales<Format>(tile, parts);
            Floats codes[VECTORS];
            read_codes<Format>(tile, run % RUNS, codes);
            for (uint32_t v = 0; v < VECTORS; ++v) {
                const size_t part = run % RUNS * (Format::parts / RUNS) + v / of_part;
                Floats values = codes[v] * parts.scale[part];
                if (Format::shifts)
                    values += parts.shift[part];
                store(out + row * told.columns + run * RUN + v * LANES, values);
            }
        }
}
