// What all loops over weights of few bits read alike, included once for each way to compile them, in
// the namespace of quant_matmul_simd.hpp or q8_matmul_simd.hpp: columns of codes, scales and shifts.

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
    typedef float Quad __attribute__((vector_size(16)));
    const Quad four = __builtin_shufflevector(values, values, 0, 1, 2, 3)
        + __builtin_shufflevector(values, values, 4, 5, 6, 7);
    const Quad two = four + __builtin_shufflevector(four, four, 1, 0, 3, 2);
    return two[0] + two[2];
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

// What several words hold of a run, for `entries_of`.
template <uint32_t BITS>
INLINED Words columns_of(const uint32_t* words)
{
    if (BITS == 4)
        return repeated(words) >> steps(4);
    if (BITS == 1)
        return (Words{} + words[0]) >> lanes();
    // shifted before they meet: GCC makes one vector of two words by way of memory
    const Words places = 2 * (lanes() & 3u);
    const Words first = (Words{} + words[0]) >> places;
    const Words second = (Words{} + words[BITS - 1]) >> places;
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 12, 13, 14, 15);
}

// A number of each byte of a word.
constexpr uint32_t in_bytes(uint32_t number) { return number * 0x01010101u; }

// Entries 2 j and 2 j + 1 of all four columns.
template <uint32_t BITS>
INLINED Words entries_of(const Words& columns, uint32_t j)
{
    return columns >> 8 * j & ((1u << BITS) - 1);
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
INLINED void read_scales(const Tile& at, Parts& parts)
{
    const uint32_t *tile = at.front, *tail = at.tail;
    if (Format::kind == FLOATS || Format::kind == BFLOATS) {
        for (float& scale : parts.scale)
            scale = 1;
    } else if (Format::kind == HALVES) {
        store(parts.scale, from_float16(loaded<Shorts>(tile)));
    } else if (Format::kind == PAIRS) {
        const Floats a = from_float16(loaded<Shorts>(tile));
        const Floats b = from_float16(loaded<Shorts>(tile + LANES / 2));
        store(parts.scale, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14));
        store(parts.shift, __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
    } else if (Format::kind == SIX_BITS) {
        const Floats both = from_float16(loaded<Shorts>(tile));
        const Words high = numbers(tile[3], 4);
        const Words scale = numbers(tile[1], 4) | (high & 3) << 4;
        const Words least = numbers(tile[2], 4) | high >> 2 << 4;
        store(parts.scale, both[0] * __builtin_convertvector((Whole)scale, Floats));
        store(parts.shift, -(both[1] * __builtin_convertvector((Whole)least, Floats)));
    } else if (Format::kind == EIGHT_BITS) {
        const Floats one = from_float16(loaded<Shorts>(tail));
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
        const Floats both = from_float16(loaded<Shorts>(tail));
        for (int part = 0; part < 16; ++part) {
            const uint32_t own = tile[part / 4] >> 8 * (part % 4);
            parts.scale[part] = both[0] * static_cast<float>(own & 15);
            parts.shift[part] = -(both[1] * static_cast<float>(own >> 4 & 15));
        }
    } else if (Format::kind == SIXTEEN_OF_SIX) {
        const Floats one = from_float16(loaded<Shorts>(tile + 3));
        for (uint32_t half = 0; half < 2; ++half) {
            const Words high = numbers(tile[2] >> 16 * half, 2);
            store(parts.scale + LANES * half, one[0] * centred(numbers(tile[half], 4) | high << 4));
        }
    } else if (Format::kind == EIGHT_OF_SIX) {
        const Words high = numbers(tail[0] >> 16, 2);
        const Floats one = from_float16(loaded<Shorts>(tail));
        store(parts.scale, one[0] * centred(numbers(tail[1], 4) | high << 4));
    } else {
        Words powers{};
        for (uint32_t run = 0; run < RUNS; ++run)
            powers[run] = tail[run / 4] >> 8 * (run % 4) & 255;
        const Words small = (Words)(powers < 2u), least = powers & 1;
        store(parts.scale,
              (Floats)((small & 0x00200000u << least) | (~small & (powers - 1) << 23)));
    }
}

// Scales and shifts, in which ZERO is: what is to be subtracted from codes.
template <class Format, int32_t ZERO>
INLINED void read_parts(const Tile& tile, Parts& parts)
{
    read_scales<Format>(tile, parts);
    if constexpr (ZERO != 0)
        for (uint32_t part = 0; part < Format::parts; part += LANES)
            store(parts.shift + part,
                  loaded<Floats>(parts.scale + part) * -static_cast<float>(ZERO));
}
