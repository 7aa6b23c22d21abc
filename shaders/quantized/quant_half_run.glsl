// Half a run of a quantized weight, 16 values, as float16: what a tile of cooperative matrices takes (quant_block.glsl reads heads and
// scales). half_run is 0 or 1. Values are rounded once: codes are exact in float16, and scaled in float32.

// What is loaded of a run. low: words of low bits (2 of LOW 2; of floats those of the half alone); more: the others of LOW 8 and of floats.
struct HalfRun {
    uvec4 low;
    uvec4 more;
    uvec2 high;
};

// Run `number` of the tile that starts `before` units behind the start of a row; both are the same for all invocations.
HalfRun half_run_of(uint row, uint before, uint number, uint half_run) {
    HalfRun run;
    const uint low = before + (FRONT + 8 * HIGH) / UNIT + LOW / UNIT * number;
#if LOW == 2
    run.low.xy = two_words(2u * row + (2u * before + FRONT / 2 + 4 * HIGH + number));
#elif LOW == 4
    run.low = four_words(row + low);
#elif LOW == 8
    run.low = four_words(row + low);
    run.more = four_words(row + low + 1u);
#else
    run.low = four_words(row + 2u * half_run + low);
    run.more = four_words(row + 2u * half_run + low + 1u);
#endif
#if HIGH == 1
    run.high.x = WORD_OF_B(row * UNIT + (before * UNIT + FRONT + number));
#elif HIGH == 2
    run.high = two_words(2u * row + (2u * before + FRONT / 2 + number));
#endif
    return run;
}

// Scale and shift of the half.
vec2 scale_of_half(Head head, uint number, uint half_run) {
#if defined(Q4_K) || defined(Q5_K)
    const int four = int(4u * number);
    const uint scale = bitfieldExtract(head.four.y, four, 4) | bitfieldExtract(head.four.w, four, 2) << 4;
    const uint least = bitfieldExtract(head.four.z, four, 4) | bitfieldExtract(head.four.w, four + 2, 2) << 4;
    return vec2(float(scale), -float(least)) * head.of_all;
#else
    const Scales scales = scales_of(head, spot_of(number));
#if PARTS == 2
    const bool upper = half_run != 0u;
    return vec2(upper ? scales.scale.y : scales.scale.x, upper ? scales.shift.y : scales.shift.x);
#else
    return vec2(scales.scale.x, scales.shift.x);
#endif
#endif
}

uint fp16_pair(vec2 values) { return packFloat2x16(f16vec2(values)); }

#ifndef FLOATS
// Entries of a column and of the next beside each other, from the lower or the upper half of their words.
uint beside(uint column, uint next, uint bits) { return (column >> bits & 0xffffu) | (next >> bits) << 16; }

// A pair of codes where they lie: in the lowest bits of 16, or with `sixteenfold` four bits above.
uint value_pair(uint codes, vec2 scale, bool sixteenfold) {
    const f16vec2 biased = unpackFloat2x16(codes | 0x64006400u); // 1024 and the code
    const f16vec2 exact = sixteenfold ? biased * float16_t(0.0625) - float16_t(64 + ZERO) : biased - float16_t(1024 + ZERO);
#ifdef SHIFTS
    return fp16_pair(fma(vec2(exact), vec2(scale.x), vec2(scale.y)));
#else
    return fp16_pair(vec2(exact) * scale.x);
#endif
}
#endif

// The 16 values in order.
void decode_half_run(HalfRun run, vec2 scale, uint half_run, out uvec4 first, out uvec4 second) {
#ifdef F16
    first = run.low;
    second = run.more;
#elif defined(BF16)
    const vec4 a = floats_of(run.low.xy), b = floats_of(run.low.zw), c = floats_of(run.more.xy), d = floats_of(run.more.zw);
    first = uvec4(fp16_pair(a.xy), fp16_pair(a.zw), fp16_pair(b.xy), fp16_pair(b.zw));
    second = uvec4(fp16_pair(c.xy), fp16_pair(c.zw), fp16_pair(d.xy), fp16_pair(d.zw));
#else
    const uint bits = 16u * half_run;
    uint values[8];
#if LOW == 8
    // columns are two words: entries 0 to 3 and 4 to 7
    const bool upper = half_run != 0u;
    const uvec4 columns = (upper ? uvec4(run.low.yw, run.more.yw) : uvec4(run.low.xz, run.more.xz)) ^ SIGN_BITS;
    [[unroll]] for (uint c = 0u; c < 2u; ++c) {
        const uint even = (columns[2u * c] & 0xffffu) | columns[2u * c + 1u] << 16;
        const uint odd = columns[2u * c] >> 16 | (columns[2u * c + 1u] & 0xffff0000u);
        values[c] = value_pair(even & 0xff00ffu, scale, false);
        values[2u + c] = value_pair(even >> 8 & 0xff00ffu, scale, false);
        values[4u + c] = value_pair(odd & 0xff00ffu, scale, false);
        values[6u + c] = value_pair(odd >> 8 & 0xff00ffu, scale, false);
    }
#else
#if LOW == 4
    uvec2 pairs = uvec2(beside(run.low.x, run.low.y, bits), beside(run.low.z, run.low.w, bits));
#ifdef SIGN_BITS
    pairs ^= 0x88888888u;
#endif
#else
    uvec2 twos = run.low.xy >> bits & 0xffffu;
    twos |= twos << 14; // a column's bits, and 16 further those of the next
#endif
#if HIGH == 1
    uint high = run.high.x >> bits & 0xffffu;
    high |= high << 15;
#elif HIGH == 2
    uvec2 high = run.high >> bits & 0xffffu;
    high |= high << 14;
#endif
    [[unroll]] for (uint entry = 0u; entry < 4u; ++entry) {
        [[unroll]] for (uint c = 0u; c < 2u; ++c) {
            const uint base = 8u * (entry / 2u); // codes are moved by whole bytes, and lie in these where the mask has them
#if LOW == 4
            const bool upper = entry % 2u == 1u;
            uint codes = pairs[c] >> base & (upper ? 0xf000f0u : 0xf000fu);
#else
            const bool upper = c == 1u;
            uint codes = twos[entry % 2u] >> base & (upper ? 0x300030u : 0x30003u);
#endif
            const int up = LOW + (upper ? 4 : 0);
#if HIGH == 1
            codes |= MOVED(high, up - int(4u * entry + 2u * c)) & 0x10001u << up;
#elif HIGH == 2
            codes |= MOVED(high[entry % 2u], up - int(base + 4u * c)) & 0x30003u << up;
#endif
#ifdef TABLE
            codes >>= upper ? 4u : 0u;
            const vec4 numbers = numbers_of(uvec4(codes & 0xffffu, codes >> 16, 0u, 0u));
            values[2u * entry + c] = fp16_pair(numbers.xy * scale.x);
#else
            values[2u * entry + c] = value_pair(codes, scale, upper);
#endif
        }
    }
#endif
    first = uvec4(values[0], values[1], values[2], values[3]);
    second = uvec4(values[4], values[5], values[6], values[7]);
#endif
}
