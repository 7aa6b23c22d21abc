// The loops over weights of few bits, included once for each way to compile them, in a namespace and
// with a target of its own (loops_packed.cpp), as compilers lower vectors before they inline
// functions. Layout of the words: vksched/ops/products/blocks.py.

constexpr uint32_t LANES = 8;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES)));

constexpr uint32_t VECTORS = RUN / LANES; // of a run

template <class Vector>
INLINED Vector loaded(const void* from)
{
    Vector made;
    std::memcpy(&made, from, sizeof made);
    return made;
}

// Four columns, again and again.
INLINED Words repeated(const void* four)
{
    const Four made = loaded<Four>(four);
    return __builtin_shufflevector(made, made, 0, 1, 2, 3, 0, 1, 2, 3);
}

INLINED Words lanes()
{
    Words made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = lane;
    return made;
}

// How far entries 0, 1, ... of columns are from the lowest bit: four lanes each.
INLINED Words steps(uint32_t bits)
{
    Words made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = lane / 4 * bits;
    return made;
}

INLINED float sum_of(const Floats& values)
{
    float sums[4] = {};
    for (uint32_t lane = 0; lane < LANES; ++lane)
        sums[lane % 4] += values[lane];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// float16 in the lower halves of words.
INLINED Floats wide(const Words& halves)
{
    const Words size = halves & 0x7fffu;
    const Floats scaled = (Floats)(size << 13) * 0x1p112f; // 0 and subnormals too
    const Words special = (Words)(size >= 0x7c00u) & 0x7f800000u;
    return (Floats)((Words)scaled | special | (halves & 0x8000u) << 16);
}

INLINED Floats from_float16(const Shorts& bits)
{
#ifdef HAS_F16C
    return (Floats)_mm256_cvtph_ps((__m128i)bits);
#else
    return wide(__builtin_convertvector(bits, Words));
#endif
}

// The four columns that several words hold, each in the lowest bits of a lane.
template <uint32_t BITS>
INLINED Words columns_of(const uint32_t* words)
{
    if (BITS == 4)
        return repeated(words);
    if (BITS == 1)
        return (Words{} + words[0]) >> (8 * (lanes() & 3u));
    const Four made{words[0], words[0] >> 16, words[BITS - 1], words[BITS - 1] >> 16};
    return repeated(&made);
}

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
INLINED void read_codes(const uint32_t* tile, uint32_t number, Floats (&codes)[VECTORS])
{
    constexpr uint32_t low = Format::low, high = Format::high;
    const uint32_t* own = tile + Format::head + RUNS * high + number * low;
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
    } else {
        columns = columns_of<low>(own);
    }
    if (high)
        above = columns_of<high>(tile + Format::head + number * high) << low;
    for (uint32_t at = 0; at < VECTORS; ++at) {
        const uint32_t entry = at * (LANES / 4); // of the first four lanes
        const Words& from = low == 8 && entry >= 4 ? later : columns;
        const uint32_t first = low == 8 ? entry % 4 : entry;
        if (Format::is_signed) {
            const Words up = from << (32 - low - low * first - steps(low));
            codes[at] = __builtin_convertvector((Whole)up >> (32 - low), Floats);
        } else {
            Words code = from >> (low * first + steps(low)) & ((1u << low) - 1);
            if (high)
                code |= above >> (high * entry + steps(high)) & ((1u << high) - 1) << low;
            if constexpr (Format::table == NUMBERS && Format::shifts)
                codes[at] = __builtin_convertvector((Whole)code, Floats); // shifts have the zero
            else if constexpr (Format::table == NUMBERS)
                codes[at] = __builtin_convertvector((Whole)code - Format::zero, Floats);
            else
                codes[at] = looked_up(code, Format::table == STEPS ? steps_table : powers_table);
        }
    }
}

// Scales and shifts of the parts of a tile that have one each.
struct Parts {
    float scale[16], shift[16];
};

INLINED void store(float* to, const Floats& values) { std::memcpy(to, &values, sizeof values); }

// Numbers 0, 1, ... of some bits each in a word.
INLINED Words numbers(uint32_t word, uint32_t bits)
{
    Words made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = lane * bits % 32;
    return word >> made & ((1u << bits) - 1);
}

// Numbers of six bits, 0 in their middle.
INLINED Floats centred(const Words& six_bits)
{
    return __builtin_convertvector((Whole)six_bits - 32, Floats);
}

template <class Format>
INLINED void read_scales(const uint32_t* tile, Parts& parts)
{
    if (Format::kind == FLOATS || Format::kind == BFLOATS) {
        for (float& scale : parts.scale)
            scale = 1;
    } else if (Format::kind == HALVES) {
        Words made{};
        for (uint32_t run = 0; run < RUNS; ++run)
            made[run] = tile[run / 2] >> 16 * (run % 2) & 0xffffu;
        store(parts.scale, wide(made));
    } else if (Format::kind == PAIRS) {
        Words made{};
        for (uint32_t run = 0; run < RUNS; ++run)
            made[run] = tile[run];
        store(parts.scale, wide(made & 0xffffu));
        store(parts.shift, wide(made >> 16));
    } else if (Format::kind == SIX_BITS) {
        const Floats both = wide(numbers(tile[0], 16));
        const Words high = numbers(tile[3], 4);
        const Words scale = numbers(tile[1], 4) | (high & 3) << 4;
        const Words least = numbers(tile[2], 4) | high >> 2 << 4;
        store(parts.scale, both[0] * __builtin_convertvector((Whole)scale, Floats));
        store(parts.shift, -(both[1] * __builtin_convertvector((Whole)least, Floats)));
    } else if (Format::kind == EIGHT_BITS) {
        const Floats one = wide(numbers(tile[4], 16));
        const Four words = loaded<Four>(tile);
        const Words both[] = {__builtin_shufflevector(words, words, 0, 0, 0, 0, 1, 1, 1, 1),
                              __builtin_shufflevector(words, words, 2, 2, 2, 2, 3, 3, 3, 3)};
        for (uint32_t half = 0; half < 2; ++half) {
            const Whole scales = (Whole)(both[half] << (24 - 8 * (lanes() & 3u))) >> 24;
            const Floats scale = one[0] * __builtin_convertvector(scales, Floats);
            store(parts.scale + LANES * half, scale);
            store(parts.shift + LANES * half, scale * -static_cast<float>(Format::zero));
        }
    } else if (Format::kind == NIBBLES) {
        const Floats both = wide(numbers(tile[4], 16));
        for (int part = 0; part < 16; ++part) {
            const uint32_t own = tile[part / 4] >> 8 * (part % 4);
            parts.scale[part] = both[0] * static_cast<float>(own & 15);
            parts.shift[part] = -(both[1] * static_cast<float>(own >> 4 & 15));
        }
    } else if (Format::kind == SIXTEEN_OF_SIX) {
        const Floats one = wide(numbers(tile[3], 16));
        for (uint32_t half = 0; half < 2; ++half) {
            const Words high = numbers(tile[2] >> 16 * half, 2);
            store(parts.scale + LANES * half, one[0] * centred(numbers(tile[half], 4) | high << 4));
        }
    } else if (Format::kind == EIGHT_OF_SIX) {
        const Words high = numbers(tile[0] >> 16, 2);
        const Floats one = wide(numbers(tile[0], 16));
        store(parts.scale, one[0] * centred(numbers(tile[1], 4) | high << 4));
    } else {
        Words powers{};
        for (uint32_t run = 0; run < RUNS; ++run)
            powers[run] = tile[run / 4] >> 8 * (run % 4) & 255;
        const Words small = (Words)(powers < 2u), least = powers & 1;
        store(parts.scale,
              (Floats)((small & 0x00200000u << least) | (~small & (powers - 1) << 23)));
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
            const uint32_t* tile = told.words + row * told.row_words + at * words_of<Format>();
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
            const uint32_t* tile =
                told.words + row * told.row_words + run / RUNS * words_of<Format>();
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
