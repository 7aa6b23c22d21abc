// How blocks of GGUF files become words, included once for each way to compile it, in a namespace and
// with a target of its own (repack.cpp).
//
//   a tile's blocks --split--> 256 codes of a byte, head --planes--> head | high bits | low bits
//
// Layout of the words: vksched/ops/quantized/quant_layout.py. Of the blocks: ggml's ggml-quants.c.

typedef uint8_t Bytes __attribute__((vector_size(16)));

template <class Vector>
INLINED Vector loaded(const void* from)
{
    Vector made;
    std::memcpy(&made, from, sizeof made);
    return made;
}

template <class Vector>
INLINED void store(void* to, const Vector& values)
{
    std::memcpy(to, &values, sizeof values);
}

// Byte 4 c + p of what has byte 4 p + c.
INLINED Four transposed(const Four& words)
{
    const Bytes from = (Bytes)words;
    return (Four)__builtin_shufflevector(from, from, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
                                         11, 15);
}

// Numbers of the four bytes of a word, beside each other in its lowest byte.
template <uint32_t BITS>
INLINED Four in_bytes(const Four& x)
{
    constexpr uint32_t apart = 8 - BITS;
    return x | x >> apart | x >> 2 * apart | x >> 3 * apart;
}

// Puts the 32 codes of a run in words, of so many bits each.
template <uint32_t BITS>
INLINED void put_in_words(const uint8_t* codes, uint32_t* to)
{
    const Four x = loaded<Four>(codes), y = loaded<Four>(codes + 16); // four neighbours in a word
    if constexpr (BITS == 8) {
        const Four first = transposed(x), second = transposed(y);
        store(to, __builtin_shufflevector(first, second, 0, 4, 1, 5));
        store(to + 4, __builtin_shufflevector(first, second, 2, 6, 3, 7));
    } else if constexpr (BITS == 4) {
        const Four even = __builtin_shufflevector(x, y, 0, 2, 4, 6);
        const Four odd = __builtin_shufflevector(x, y, 1, 3, 5, 7);
        store(to, transposed(even | odd << 4));
    } else {
        const Four even = in_bytes<BITS>(__builtin_shufflevector(x, y, 0, 2, 4, 6));
        const Four odd = in_bytes<BITS>(__builtin_shufflevector(x, y, 1, 3, 5, 7));
        const Bytes made =
            (Bytes)__builtin_shufflevector(BITS == 1 ? even | odd << 4 : even, odd, 0, 1, 2, 3);
        const Bytes other = (Bytes)odd;
        const Four words = (Four)__builtin_shufflevector(made, other, 0, 4, 8, 12, 16, 20, 24, 28,
                                                         0, 4, 8, 12, 16, 20, 24, 28);
        to[0] = words[0];
        if constexpr (BITS == 2)
            to[1] = words[1];
    }
}

// The lower halves of some bytes, 16 at a time, then the upper ones.
template <uint32_t COUNT>
INLINED void nibbles(const uint8_t* from, uint8_t* codes)
{
    for (uint32_t at = 0; at < COUNT; at += 16) {
        const Bytes own = loaded<Bytes>(from + at);
        store(codes + at, own & 15);
        store(codes + COUNT + at, own >> 4);
    }
}

// Adds 32 codes' next higher bits, which lie at one place of 32 bytes.
template <uint32_t BITS>
INLINED void add_bits(const uint8_t* from, uint32_t shift, uint32_t low, uint8_t* codes)
{
    constexpr uint8_t mask = (1 << BITS) - 1;
    for (uint32_t at = 0; at < RUN; at += 16) {
        const Bytes bits = (Bytes)(loaded<Four>(from + at) >> shift) & mask;
        store(codes + at, loaded<Bytes>(codes + at) | bits << low);
    }
}

// Adds a fifth bit to the codes of a run, of a word that has one for each.
INLINED void add_fifth(const uint8_t* from, uint8_t* codes)
{
    constexpr Bytes each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (uint32_t half = 0; half < 2; ++half, from += 2, codes += 16) {
        const uint64_t first = from[0] * 0x0101010101010101u, second = from[1] * 0x0101010101010101u;
        typedef uint64_t Two __attribute__((vector_size(16)));
        const Bytes is_set = (Bytes)(((Bytes)Two{first, second} & each) == each);
        store(codes, loaded<Bytes>(codes) | (is_set & 16));
    }
}

// Scales and minima of six bits of q4_K and q5_K: both scales of all, low bits of scales, of minima,
// high bits of both.
INLINED void six_bits(const uint8_t* block, uint32_t* head)
{
    const uint8_t *d = block + 4, *m = block + 8, *both = block + 12;
    uint32_t scales = 0, minima = 0, high = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t first = d[i] & 63, second = (both[i] & 15) | (d[i] >> 2 & 48);
        const uint32_t least = m[i] & 63, other = both[i] >> 4 | (m[i] >> 2 & 48);
        scales |= (first & 15) << 4 * i | (second & 15) << (16 + 4 * i);
        minima |= (least & 15) << 4 * i | (other & 15) << (16 + 4 * i);
        high |= (first >> 4 | least >> 4 << 2) << 4 * i;
        high |= (second >> 4 | other >> 4 << 2) << (16 + 4 * i);
    }
    std::memcpy(head, block, 4);
    head[1] = scales;
    head[2] = minima;
    head[3] = high;
}

// What follows takes the blocks of a tile apart, into codes and a head of zeros.

// `blocks` of a run each: scales, fifth bits, codes.
template <class Format>
INLINED void split_runs(const uint8_t* from, uint32_t blocks, uint8_t* codes, uint32_t* head)
{
    constexpr uint32_t scale = 4 * Format::head / RUNS;
    for (uint32_t run = 0; run < blocks; ++run, from += Format::block, codes += RUN) {
        std::memcpy(reinterpret_cast<uint8_t*>(head) + run * scale, from, scale);
        if (Format::low == 8)
            std::memcpy(codes, from + scale, RUN);
        else
            nibbles<16>(from + scale + 4 * Format::high, codes);
        if (Format::high)
            add_fifth(from + scale, codes);
        else if (Format::flipped)
            for (uint32_t at = 0; at < RUN; at += 16)
                store(codes + at, loaded<Bytes>(codes + at) ^ Format::flipped);
    }
}

INLINED void split_k45(const uint8_t* from, bool five, uint8_t* codes, uint32_t* head)
{
    six_bits(from, head);
    for (uint32_t run = 0; run < RUNS; run += 2)
        nibbles<RUN>(from + (five ? 48 : 16) + run / 2 * RUN, codes + run * RUN);
    if (five)
        for (uint32_t run = 0; run < RUNS; ++run)
            add_bits<1>(from + 16, run, 4, codes + run * RUN);
}

INLINED void split_k6(const uint8_t* from, uint8_t* codes, uint32_t* head)
{
    std::memcpy(head, from + 192, 18);
    for (uint32_t half = 0; half < 2; ++half)
        nibbles<64>(from + 64 * half, codes + 128 * half);
    for (uint32_t run = 0; run < RUNS; ++run)
        add_bits<2>(from + 128 + run / 4 * RUN, 2 * (run % 4), 4, codes + run * RUN);
}

INLINED void low_two_bits(const uint8_t* from, uint8_t* codes)
{
    std::memset(codes, 0, TILE);
    for (uint32_t run = 0; run < RUNS; ++run)
        add_bits<2>(from + run / 4 * RUN, 2 * (run % 4), 0, codes + run * RUN);
}

INLINED void split_k2(const uint8_t* from, uint8_t* codes, uint32_t* head)
{
    low_two_bits(from + 16, codes);
    std::memcpy(head, from, 16);
    std::memcpy(head + 4, from + 80, 4);
}

// Head: low bits of 16 scales, their high bits, and the scale of all.
INLINED void split_k3(const uint8_t* from, uint8_t* codes, uint32_t* head)
{
    low_two_bits(from + 32, codes);
    for (uint32_t run = 0; run < RUNS; ++run)
        add_bits<1>(from, run, 2, codes + run * RUN);
    const uint8_t *low = from + 96, *high = from + 104;
    for (uint32_t i = 0; i < 8; ++i) {
        head[0] |= (low[i] & 15u) << 4 * i;
        head[1] |= (low[i] >> 4 & 15u) << 4 * i;
    }
    for (uint32_t i = 0; i < 16; ++i)
        head[2] |= (high[i % 4] >> 2 * (i / 4) & 3u) << 2 * i;
    std::memcpy(head + 3, from + 108, 2);
}

INLINED void split_iq4_xs(const uint8_t* from, uint8_t* codes, uint32_t* head)
{
    std::memcpy(head, from, 8);
    for (uint32_t run = 0; run < RUNS; ++run)
        nibbles<16>(from + 8 + 16 * run, codes + RUN * run);
}

template <class Format>
INLINED void split(const uint8_t* from, uint32_t blocks, uint8_t* codes, uint32_t* head)
{
    if constexpr (Format::kind == RUNS_ALONE)
        split_runs<Format>(from, blocks, codes, head);
    else if constexpr (Format::kind == K4 || Format::kind == K5)
        split_k45(from, Format::kind == K5, codes, head);
    else if constexpr (Format::kind == K6)
        split_k6(from, codes, head);
    else if constexpr (Format::kind == K2)
        split_k2(from, codes, head);
    else if constexpr (Format::kind == K3)
        split_k3(from, codes, head);
    else
        split_iq4_xs(from, codes, head);
}

// Puts the high bits of a tile's codes in words, of runs that are not there zeros, and takes them
// from the codes.
template <class Format>
INLINED void put_high_bits(uint8_t* codes, uint32_t runs, uint32_t* to)
{
    for (uint32_t run = 0; run < runs; ++run, codes += RUN) {
        uint8_t above[RUN];
        for (uint32_t at = 0; at < RUN; ++at) {
            above[at] = codes[at] >> Format::low;
            codes[at] &= (1 << Format::low) - 1;
        }
        put_in_words<Format::high>(above, to + run * Format::high);
    }
    std::memset(to + runs * Format::high, 0, 4 * Format::high * (RUNS - runs));
}

template <class Format>
void repack(const Blocks& told, uint32_t* words)
{
    constexpr uint32_t front = Format::head - Format::tail;
    constexpr uint32_t blocks_of_tile = Format::kind == RUNS_ALONE ? RUNS : 1;
    const size_t row_bytes = told.columns * blocks_of_tile / TILE * Format::block;
    for (size_t row = 0; row < told.rows; ++row) {
        const uint8_t* from = told.bytes + row * row_bytes;
        uint32_t *to = words + row * told.row_words, *tail = to;
        uint32_t tiles = 0;
        for (size_t left = told.columns; left > 0;) {
            const uint32_t runs = static_cast<uint32_t>((left < TILE ? left : TILE) / RUN);
            const uint32_t blocks = blocks_of_tile == 1 ? 1 : runs;
            alignas(32) uint8_t codes[TILE];
            uint32_t head[Format::head] = {};
            split<Format>(from, blocks, codes, head);
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
                put_high_bits<Format>(codes, runs, to);
            to += RUNS * Format::high;
            for (uint32_t run = 0; run < runs; ++run, to += Format::low)
                put_in_words<Format::low>(codes + run * RUN, to);
            from += blocks * Format::block;
            left -= runs * RUN;
        }
    }
}
