// Scales, offsets and bit planes of quantized weights, for all kernels. Included once for each
// instruction set, in the namespace of quant_matmul_simd.hpp or q8_matmul_simd.hpp.

constexpr uint32_t LANES = 8;
typedef float F32x8 __attribute__((vector_size(4 * LANES)));
typedef uint32_t U32x8 __attribute__((vector_size(4 * LANES)));
typedef int32_t I32x8 __attribute__((vector_size(4 * LANES)));
typedef uint16_t U16x8 __attribute__((vector_size(2 * LANES)));

constexpr uint32_t VECTORS = RUN / LANES; // vectors of a run

template <class Vector>
INLINED Vector load(const void* from)
{
    Vector result;
    std::memcpy(&result, from, sizeof result);
    return result;
}

// Broadcast four words to both halves of a vector.
INLINED U32x8 broadcast4(const void* four)
{
    const U32x4 result = load<U32x4>(four);
    return __builtin_shufflevector(result, result, 0, 1, 2, 3, 0, 1, 2, 3);
}

INLINED U32x8 lane_indices()
{
    U32x8 result;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        result[lane] = lane;
    return result;
}

// Return the bit offsets of entries 0 and 1 of the columns: four lanes each.
INLINED U32x8 column_bit_offsets(uint32_t bits)
{
    U32x8 result;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        result[lane] = lane / 4 * bits;
    return result;
}

INLINED float horizontal_sum(const F32x8& values)
{
    typedef float F32x4 __attribute__((vector_size(16)));
    const F32x4 four = __builtin_shufflevector(values, values, 0, 1, 2, 3)
        + __builtin_shufflevector(values, values, 4, 5, 6, 7);
    const F32x4 two = four + __builtin_shufflevector(four, four, 1, 0, 3, 2);
    return two[0] + two[2];
}

// Convert fp16 in the low halves of words to float32.
INLINED F32x8 fp16_to_float(const U32x8& halves)
{
    const U32x8 size = halves & 0x7fffu;
    const F32x8 scaled = (F32x8)(size << 13) * 0x1p112f; // also exact for 0 and subnormals
    const U32x8 special = (U32x8)(size >= 0x7c00u) & 0x7f800000u;
    return (F32x8)((U32x8)scaled | special | (halves & 0x8000u) << 16);
}

INLINED F32x8 from_float16(const U16x8& bits)
{
#ifdef HAS_F16C
    return (F32x8)_mm256_cvtph_ps((__m128i)bits);
#else
    return fp16_to_float(__builtin_convertvector(bits, U32x8));
#endif
}

// Load the bits of a run from several words, for `entries_of`.
template <uint32_t BITS>
INLINED U32x8 columns_of(const uint32_t* words)
{
    if (BITS == 4)
        return broadcast4(words) >> column_bit_offsets(4);
    if (BITS == 1)
        return (U32x8{} + words[0]) >> lane_indices();
    // shift before the shuffle: GCC assembles a vector of two words through memory
    const U32x8 lane_bit_offsets = 2 * (lane_indices() & 3u);
    const U32x8 first = (U32x8{} + words[0]) >> lane_bit_offsets;
    const U32x8 second = (U32x8{} + words[BITS - 1]) >> lane_bit_offsets;
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 12, 13, 14, 15);
}

// Repeat a number in each byte of a word.
constexpr uint32_t splat_byte(uint32_t number) { return number * 0x01010101u; }

// Return entries 2 j and 2 j + 1 of all four columns.
template <uint32_t BITS>
INLINED U32x8 entries_of(const U32x8& columns, uint32_t j)
{
    return columns >> 8 * j & ((1u << BITS) - 1);
}

// Scales and offsets of the parts of a tile: value = scale * quant + offset.
struct Parts {
    float scale[16], offset[16];
};

INLINED void store(float* to, const F32x8& values) { std::memcpy(to, &values, sizeof values); }

// Unpack the integers of a word, `bits` bits each.
INLINED U32x8 unpack_bits(uint32_t word, uint32_t bits)
{
    U32x8 result;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        result[lane] = lane * bits % 32;
    return word >> result & ((1u << bits) - 1);
}

// Subtract the middle of 6-bit integers.
INLINED F32x8 centred(const U32x8& six_bits)
{
    return __builtin_convertvector((I32x8)six_bits - 32, F32x8);
}

template <class Format>
INLINED void read_scales(const Tile& at, Parts& parts)
{
    const uint32_t *tile = at.front, *tail = at.tail;
    if (Format::scale_kind == FLOAT16 || Format::scale_kind == BFLOAT16) {
        for (float& scale : parts.scale)
            scale = 1;
    } else if (Format::scale_kind == FP16_SCALE) {
        store(parts.scale, from_float16(load<U16x8>(tile)));
    } else if (Format::scale_kind == FP16_SCALE_MIN) {
        const F32x8 a = from_float16(load<U16x8>(tile));
        const F32x8 b = from_float16(load<U16x8>(tile + LANES / 2));
        store(parts.scale, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14));
        store(parts.offset, __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
    } else if (Format::scale_kind == INT6_SCALE_MIN) {
        const F32x8 super_scales = from_float16(load<U16x8>(tile));
        const U32x8 high = unpack_bits(tile[3], 4);
        const U32x8 scale = unpack_bits(tile[1], 4) | (high & 3) << 4;
        const U32x8 mins = unpack_bits(tile[2], 4) | high >> 2 << 4;
        store(parts.scale, super_scales[0] * __builtin_convertvector((I32x8)scale, F32x8));
        store(parts.offset, -(super_scales[1] * __builtin_convertvector((I32x8)mins, F32x8)));
    } else if (Format::scale_kind == INT8_SCALE) {
        const F32x8 super_scale = from_float16(load<U16x8>(tail));
        const U32x4 words = load<U32x4>(tile);
        const U32x8 super_scales[] = {__builtin_shufflevector(words, words, 0, 0, 0, 0, 1, 1, 1, 1),
                              __builtin_shufflevector(words, words, 2, 2, 2, 2, 3, 3, 3, 3)};
        for (uint32_t half = 0; half < 2; ++half) {
            const I32x8 scales =
                (I32x8)(super_scales[half] << (24 - 8 * (lane_indices() & 3u))) >> 24;
            const F32x8 scale = super_scale[0] * __builtin_convertvector(scales, F32x8);
            store(parts.scale + LANES * half, scale);
            store(parts.offset + LANES * half, scale * -static_cast<float>(Format::zero_point));
        }
    } else if (Format::scale_kind == INT4_SCALE_MIN) {
        const F32x8 super_scales = from_float16(load<U16x8>(tail));
        for (int part = 0; part < 16; ++part) {
            const uint32_t byte_pair = tile[part / 4] >> 8 * (part % 4);
            parts.scale[part] = super_scales[0] * static_cast<float>(byte_pair & 15);
            parts.offset[part] = -(super_scales[1] * static_cast<float>(byte_pair >> 4 & 15));
        }
    } else if (Format::scale_kind == INT6_SCALE_16) {
        const F32x8 super_scale = from_float16(load<U16x8>(tile + 3));
        for (uint32_t half = 0; half < 2; ++half) {
            const U32x8 high = unpack_bits(tile[2] >> 16 * half, 2);
            store(parts.scale + LANES * half,
                  super_scale[0] * centred(unpack_bits(tile[half], 4) | high << 4));
        }
    } else if (Format::scale_kind == INT6_SCALE_8) {
        const U32x8 high = unpack_bits(tail[0] >> 16, 2);
        const F32x8 super_scale = from_float16(load<U16x8>(tail));
        store(parts.scale, super_scale[0] * centred(unpack_bits(tail[1], 4) | high << 4));
    } else {
        U32x8 powers{};
        for (uint32_t run = 0; run < RUNS; ++run)
            powers[run] = tail[run / 4] >> 8 * (run % 4) & 255;
        const U32x8 small = (U32x8)(powers < 2u), mins = powers & 1;
        store(parts.scale,
              (F32x8)((small & 0x00200000u << mins) | (~small & (powers - 1) << 23)));
    }
}

// Read the scales and offsets of a tile. ZERO: zero point that becomes part of the offsets.
template <class Format, int32_t ZERO>
INLINED void read_parts(const Tile& tile, Parts& parts)
{
    read_scales<Format>(tile, parts);
    if constexpr (ZERO != 0)
        for (uint32_t part = 0; part < Format::parts; part += LANES)
            store(parts.offset + part,
                  load<F32x8>(parts.scale + part) * -static_cast<float>(ZERO));
}
