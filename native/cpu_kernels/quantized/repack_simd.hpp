// Repacking of GGUF blocks, included once for each instruction set, in a namespace of its own
// (repack.cpp).
//
//   blocks of a tile --split--> 256 quants (bytes), head --pack--> head | high bits | low bits
//
// Layout of the words: vksched/ops/quantized/quant_layout.py. Layout of the blocks: ggml's
// ggml-quants.c.

typedef uint8_t U8x16 __attribute__((vector_size(16)));

template <class Vector>
INLINED Vector load(const void* from)
{
    Vector packed;
    std::memcpy(&packed, from, sizeof packed);
    return packed;
}

template <class Vector>
INLINED void store(void* to, const Vector& values)
{
    std::memcpy(to, &values, sizeof values);
}

// Transpose the 4 x 4 bytes of a vector.
INLINED U32x4 transposed(const U32x4& words)
{
    const U8x16 from = (U8x16)words;
    return (U32x4)__builtin_shufflevector(from, from, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
                                         11, 15);
}

// Gather BITS bits of each byte of a word into its lowest byte.
template <uint32_t BITS>
INLINED U32x4 gather_bits(const U32x4& x)
{
    constexpr uint32_t apart = 8 - BITS;
    return x | x >> apart | x >> 2 * apart | x >> 3 * apart;
}

// Pack the 32 quants of a run into words, with BITS bits each.
template <uint32_t BITS>
INLINED void pack_words(const uint8_t* quants, uint32_t* to)
{
    const U32x4 x = load<U32x4>(quants),
                y = load<U32x4>(quants + 16); // four adjacent quants in a word
    if constexpr (BITS == 8) {
        const U32x4 first = transposed(x), second = transposed(y);
        store(to, __builtin_shufflevector(first, second, 0, 4, 1, 5));
        store(to + 4, __builtin_shufflevector(first, second, 2, 6, 3, 7));
    } else if constexpr (BITS == 4) {
        const U32x4 even = __builtin_shufflevector(x, y, 0, 2, 4, 6);
        const U32x4 odd = __builtin_shufflevector(x, y, 1, 3, 5, 7);
        store(to, transposed(even | odd << 4));
    } else {
        const U32x4 even = gather_bits<BITS>(__builtin_shufflevector(x, y, 0, 2, 4, 6));
        const U32x4 odd = gather_bits<BITS>(__builtin_shufflevector(x, y, 1, 3, 5, 7));
        const U8x16 packed =
            (U8x16)__builtin_shufflevector(BITS == 1 ? even | odd << 4 : even, odd, 0, 1, 2, 3);
        const U8x16 min_high = (U8x16)odd;
        const U32x4 words = (U32x4)__builtin_shufflevector(packed, min_high, 0, 4, 8, 12, 16, 20,
                                                           24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
        to[0] = words[0];
        if constexpr (BITS == 2)
            to[1] = words[1];
    }
}

// Unpack nibbles: the low ones of COUNT bytes, then the high ones.
template <uint32_t COUNT>
INLINED void unpack_nibbles(const uint8_t* from, uint8_t* quants)
{
    for (uint32_t at = 0; at < COUNT; at += 16) {
        const U8x16 bytes = load<U8x16>(from + at);
        store(quants + at, bytes & 15);
        store(quants + COUNT + at, bytes >> 4);
    }
}

// Or BITS high bits into 32 quants; they are at bit `shift` of 32 bytes.
template <uint32_t BITS>
INLINED void or_high_bits(const uint8_t* from, uint32_t shift, uint32_t low, uint8_t* quants)
{
    constexpr uint8_t mask = (1 << BITS) - 1;
    for (uint32_t at = 0; at < RUN; at += 16) {
        const U8x16 bits = (U8x16)(load<U32x4>(from + at) >> shift) & mask;
        store(quants + at, load<U8x16>(quants + at) | bits << low);
    }
}

// Or a fifth bit into the quants of a run, from a word with one bit for each.
INLINED void or_fifth_bits(const uint8_t* from, uint8_t* quants)
{
    constexpr U8x16 each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (uint32_t half = 0; half < 2; ++half, from += 2, quants += 16) {
        const uint64_t first = from[0] * 0x0101010101010101u,
                       second = from[1] * 0x0101010101010101u;
        typedef uint64_t U64x2 __attribute__((vector_size(16)));
        const U8x16 is_set = (U8x16)(((U8x16)U64x2{first, second} & each) == each);
        store(quants, load<U8x16>(quants) | (is_set & 16));
    }
}

// Repack the 6-bit scales and mins of q4_K and q5_K: super-scales, low bits of scales, low bits of
// mins, high bits of both.
INLINED void repack_k_scales(const uint8_t* block, uint32_t* head)
{
    const uint8_t *d = block + 4, *m = block + 8, *both = block + 12;
    uint32_t scales = 0, minima = 0, high = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t first = d[i] & 63, second = (both[i] & 15) | (d[i] >> 2 & 48);
        const uint32_t min_low = m[i] & 63, min_high = both[i] >> 4 | (m[i] >> 2 & 48);
        scales |= (first & 15) << 4 * i | (second & 15) << (16 + 4 * i);
        minima |= (min_low & 15) << 4 * i | (min_high & 15) << (16 + 4 * i);
        high |= (first >> 4 | min_low >> 4 << 2) << 4 * i;
        high |= (second >> 4 | min_high >> 4 << 2) << (16 + 4 * i);
    }
    std::memcpy(head, block, 4);
    head[1] = scales;
    head[2] = minima;
    head[3] = high;
}

// The following functions split the blocks of a tile into quants and a zero-initialized head.

// Split blocks of a run each: scales, fifth bits, quants.
template <class Format>
INLINED void split_runs(const uint8_t* from, uint32_t blocks, uint8_t* quants, uint32_t* head)
{
    constexpr uint32_t scale = 4 * Format::head / RUNS;
    for (uint32_t run = 0; run < blocks; ++run, from += Format::block, quants += RUN) {
        std::memcpy(reinterpret_cast<uint8_t*>(head) + run * scale, from, scale);
        if (Format::low == 8)
            std::memcpy(quants, from + scale, RUN);
        else
            unpack_nibbles<16>(from + scale + 4 * Format::high, quants);
        if (Format::high)
            or_fifth_bits(from + scale, quants);
        else if (Format::flipped)
            for (uint32_t at = 0; at < RUN; at += 16)
                store(quants + at, load<U8x16>(quants + at) ^ Format::flipped);
    }
}

INLINED void split_k45(const uint8_t* from, bool five, uint8_t* quants, uint32_t* head)
{
    repack_k_scales(from, head);
    for (uint32_t run = 0; run < RUNS; run += 2)
        unpack_nibbles<RUN>(from + (five ? 48 : 16) + run / 2 * RUN, quants + run * RUN);
    if (five)
        for (uint32_t run = 0; run < RUNS; ++run)
            or_high_bits<1>(from + 16, run, 4, quants + run * RUN);
}

INLINED void split_k6(const uint8_t* from, uint8_t* quants, uint32_t* head)
{
    std::memcpy(head, from + 192, 18);
    for (uint32_t half = 0; half < 2; ++half)
        unpack_nibbles<64>(from + 64 * half, quants + 128 * half);
    for (uint32_t run = 0; run < RUNS; ++run)
        or_high_bits<2>(from + 128 + run / 4 * RUN, 2 * (run % 4), 4, quants + run * RUN);
}

INLINED void unpack_low_2bit(const uint8_t* from, uint8_t* quants)
{
    std::memset(quants, 0, TILE);
    for (uint32_t run = 0; run < RUNS; ++run)
        or_high_bits<2>(from + run / 4 * RUN, 2 * (run % 4), 0, quants + run * RUN);
}

INLINED void split_k2(const uint8_t* from, uint8_t* quants, uint32_t* head)
{
    unpack_low_2bit(from + 16, quants);
    std::memcpy(head, from, 16);
    std::memcpy(head + 4, from + 80, 4);
}

// Head: low bits of 16 scales, their high bits, and the super-scale.
INLINED void split_k3(const uint8_t* from, uint8_t* quants, uint32_t* head)
{
    unpack_low_2bit(from + 32, quants);
    for (uint32_t run = 0; run < RUNS; ++run)
        or_high_bits<1>(from, run, 2, quants + run * RUN);
    const uint8_t *low = from + 96, *high = from + 104;
    for (uint32_t i = 0; i < 8; ++i) {
        head[0] |= (low[i] & 15u) << 4 * i;
        head[1] |= (low[i] >> 4 & 15u) << 4 * i;
    }
    for (uint32_t i = 0; i < 16; ++i)
        head[2] |= (high[i % 4] >> 2 * (i / 4) & 3u) << 2 * i;
    std::memcpy(head + 3, from + 108, 2);
}

INLINED void split_iq4_xs(const uint8_t* from, uint8_t* quants, uint32_t* head)
{
    std::memcpy(head, from, 8);
    for (uint32_t run = 0; run < RUNS; ++run)
        unpack_nibbles<16>(from + 8 + 16 * run, quants + RUN * run);
}

template <class Format>
INLINED void split(const uint8_t* from, uint32_t blocks, uint8_t* quants, uint32_t* head)
{
    if constexpr (Format::kind == RUN_BLOCKS)
        split_runs<Format>(from, blocks, quants, head);
    else if constexpr (Format::kind == K4 || Format::kind == K5)
        split_k45(from, Format::kind == K5, quants, head);
    else if constexpr (Format::kind == K6)
        split_k6(from, quants, head);
    else if constexpr (Format::kind == K2)
        split_k2(from, quants, head);
    else if constexpr (Format::kind == K3)
        split_k3(from, quants, head);
    else
        split_iq4_xs(from, quants, head);
}

// Pack the high bits of the quants of a tile, zeros for missing runs, and clear them in the quants.
template <class Format>
INLINED void pack_high_bits(uint8_t* quants, uint32_t runs, uint32_t* to)
{
    for (uint32_t run = 0; run < runs; ++run, quants += RUN) {
        uint8_t above[RUN];
        for (uint32_t at = 0; at < RUN; ++at) {
            above[at] = quants[at] >> Format::low;
            quants[at] &= (1 << Format::low) - 1;
        }
        pack_words<Format::high>(above, to + run * Format::high);
    }
    std::memset(to + runs * Format::high, 0, 4 * Format::high * (RUNS - runs));
}

template <class Format>
void repack(const Blocks& block_rows, uint32_t* words)
{
    constexpr uint32_t front = Format::head - Format::tail;
    constexpr uint32_t blocks_of_tile = Format::kind == RUN_BLOCKS ? RUNS : 1;
    const size_t row_bytes = block_rows.columns * blocks_of_tile / TILE * Format::block;
    for (size_t row = 0; row < block_rows.rows; ++row) {
        const uint8_t* from = block_rows.bytes + row * row_bytes;
        uint32_t *to = words + row * block_rows.row_words, *tail = to;
        uint32_t tiles = 0;
        for (size_t left = block_rows.columns; left > 0;) {
            const uint32_t runs = static_cast<uint32_t>((left < TILE ? left : TILE) / RUN);
            const uint32_t blocks = blocks_of_tile == 1 ? 1 : runs;
            alignas(32) uint8_t quants[TILE];
            uint32_t head[Format::head] = {};
            split<Format>(from, blocks, quants, head);
            if (Format::tail && tiles++ % 2 == 0) {
                tail = to;
                std::memset(tail, 0, 8 * Format::tail);
                to += 2 * Format::tail;
            }
            std::memcpy(tail, head + front, 4 * Format::tail);
            tail += Format::tail;
            std::memcpy(to, head, 4 * front);
            to += front;
            if constexpr (Format::high > 0)
                pack_high_bits<Format>(quants, runs, to);
            to += RUNS * Format::high;
            for (uint32_t run = 0; run < runs; ++run, to += Format::low)
                pack_words<Format::low>(quants + run * RUN, to);
            from += blocks * Format::block;
            left -= runs * RUN;
        }
    }
}
