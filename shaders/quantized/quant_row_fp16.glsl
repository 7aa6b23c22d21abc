// BATCH rows of x in shared memory as float16, in the order of codes (quant_runs.glsl), MAX_RUNS runs at a time. Each is multiplied by a power
// of two that brings its largest magnitude to 2^14 or more: values beyond float16's range stay finite. And the sums of each run that are
// subtracted from products by codes. A row goes through the same operations in the same order for each BATCH and ROWS, so that its results
// have the same bits: sums are `precise` or fma, and the invocations of a workgroup do not depend on either.
const uint PAIRS = 4u;
shared uvec4 x_pairs[BATCH * PAIRS * MAX_RUNS];
#ifdef SHIFTS
#define SUM vec2 // of x * (the part of pairs that is not codes); of x
#define SUM_OF(stored, plain) vec2(stored, plain)
#else
#define SUM float
#define SUM_OF(stored, plain) (stored)
#endif
#ifdef SUMS
shared SUM x_sums[BATCH * PARTS * MAX_RUNS];
#endif
const uint LARGEST = 14u;
const uint TINY = 1u << 23; // 2^-126
shared uvec2 measured[BATCH * SUBGROUPS];

// Of row gl_SubgroupInvocationID % BATCH: the word of the largest magnitude; the factor of a before the norm; the factor of the norm; the power of
// two after the scale of the norm.
uint largest;
float by, rate, power;

float of_row(float value, uint row) { return BATCH == 1u ? value : subgroupShuffle(value, row); }
bool any_row(bool mine) { return BATCH == 1u ? mine : subgroupMax(uint(mine)) != 0u; }

const float LEAST_BY = 8.271806125530277e-25, MOST_BY = 18446744073709551616.0; // 2^-80, 2^64
const uint MEASURE = 0u, MEASURE_AGAIN = 1u, STAGE = 2u; // passes over rows

#ifdef FLOATS
void stage_pairs(vec4 first, vec4 second, uint i, uint place) {
    x_pairs[i * BATCH * MAX_RUNS + place] = uvec4(packed(first.xy), packed(first.zw), packed(second.xy), packed(second.zw));
}
#else
// Four pairs of a run: i of the four lanes that have one each.
void stage_pairs(vec4 first, vec4 second, uint i, uint place) {
    const vec4 places = places_of(i), inverse = inverse_places_of(i);
    uvec4 pairs;
    vec2 stored = vec2(0.0), plain = vec2(0.0);
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        pairs[c] = packed(vec2(first[c], second[c]) * inverse[c]);
        const vec2 rounded = halves(pairs[c] ^ n >> 31); // Mesa 25 adds values before they are rounded, where it sees the rounding
        stored += rounded;
#if LOW == 2
        plain = fma(rounded, vec2(places[c]), plain);
#endif
    }
    x_pairs[i * BATCH * MAX_RUNS + place] = pairs;
#ifdef SUMS
#if LOW != 2
    plain = stored * places.x; // one place for all
#endif
    stored *= 1024.0;
#ifndef SHIFTS
    stored = fma(vec2(float(ZERO)), plain, stored);
#endif
#if PARTS == 1
    float all = stored.x + stored.y, all_plain = plain.x + plain.y;
#define LAST_PART(x)
#else
    vec2 all = stored, all_plain = plain;
#define LAST_PART(x) x
#endif
    all += subgroupShuffleXor(all, 1u);
    all += subgroupShuffleXor(all, 2u);
#ifdef SHIFTS
    all_plain += subgroupShuffleXor(all_plain, 1u);
    all_plain += subgroupShuffleXor(all_plain, 2u);
#endif
    if (i == 0u) {
#if PARTS == 1
        x_sums[place] = SUM_OF(all, all_plain);
#else
        x_sums[place] = SUM_OF(all.x, all_plain.x);
        x_sums[BATCH * MAX_RUNS + place] = SUM_OF(all.y, all_plain.y);
#endif
    }
#endif
}
#endif

vec4 masked(vec4 x, uint mask) { return uintBitsToFloat(floatBitsToUint(x) & mask); }
float plus_square(float sum, vec4 x) { return fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, sum)))); }

// One pass: measures whole rows, or stages MAX_RUNS runs from `begin` on. All passes are one loop, so that the code is short.
void go_over_rows(uint lane, uint pass, uint begin) {
    const uint units = PAIRS * (pass == STAGE ? min(k / RUN - begin, MAX_RUNS) : k / RUN);
    [[dont_unroll]] for (uint row = 0u; row < BATCH; ++row) {
        const uint at_row = BATCH == 1u ? gl_WorkGroupID.y : min(gl_WorkGroupID.y * BATCH + row, m - 1u);
        const uint before = (a_offset + at_row * k) / 4u;
        const float own_by = of_row(by, row), own_power = of_row(power, row);
        const uint mask = floatBitsToUint(own_power) == TINY ? 0xc6ffffffu : 0xffffffffu; // of infinities, that makes 2^14
        float squares = 0.0;
        uint own_largest = 0u;
        [[dont_unroll]] for (uint unit = lane; unit < units; unit += gl_WorkGroupSize.x) {
            const uint run = unit / PAIRS, i = unit % PAIRS;
            const uvec2 at = 8u * (begin + run) + uvec2(FIRST_OF(i), SECOND_OF(i));
            vec4 first = times(a[before + at.x], own_by), second = times(a[before + at.y], own_by);
            if (NORMED != 0u) {
                squares = plus_square(plus_square(squares, first), second);
                first *= scale[scale_offset / 4u + at.x];
                second *= scale[scale_offset / 4u + at.y];
            }
            if (pass == STAGE) {
                stage_pairs(masked(times(first, own_power), mask), masked(times(second, own_power), mask), i, row * MAX_RUNS + run);
            } else {
                own_largest = max(own_largest, max(largest_word(first), largest_word(second)));
            }
        }
        if (pass != STAGE) {
            squares = subgroupAdd(squares);
            own_largest = subgroupMax(own_largest);
            if (subgroupElect()) measured[row * SUBGROUPS + gl_SubgroupID] = uvec2(floatBitsToUint(squares), own_largest);
        }
        if (BATCH == 1u) break; // no loop at all
    }
    barrier();
}

// The pass after one that measured. Rows whose squares or scaled values left the range of float32 are measured again, times
// a power of two near 1 / their root mean square, as far as that is known.
uint pass_after(uint pass) {
    const uint first = gl_SubgroupInvocationID % BATCH * SUBGROUPS;
    float squares = 0.0;
    largest = 0u;
    [[dont_unroll]] for (uint i = 0u; i < SUBGROUPS; ++i) {
        const uvec2 other = measured[first + i];
        squares += uintBitsToFloat(other.x);
        largest = max(largest, other.y);
    }
    if (NORMED != 0u) {
        rate = rate_of(squares / float(k), times(times(eps, by), by));
        const bool lost = is_lost(rate) || largest == 0x7f800000u;
        if (pass == MEASURE && any_row(lost)) {
            if (lost) by = uintBitsToFloat(floatBitsToUint(clamp(rate, LEAST_BY, MOST_BY)) & 0x7f800000u);
            return MEASURE_AGAIN;
        }
    }
    return STAGE;
}

// The factor of sums of products; of a row with infinities, products are infinite by the sign of the weight there, or NaN.
float finish_measuring() {
    const bool finite = largest < 0x7f800000u;
    const uint biased = finite ? uint(min(int(LARGEST + 254u) - int(largest >> 23), 253)) << 23 : TINY;
    power = uintBitsToFloat(biased);
    if (!finite) by = power; // twice: finite values of a row with infinities become 0
    return uintBitsToFloat(finite ? (254u << 23) - biased : largest) * rate;
}

// sum + scale * (products less the part of pairs that is not codes) (+ shift * the sum of x).
float finished(float sum, float products, SUM own, float scale, float shift) {
#ifdef SHIFTS
    precise const float exact = products - own.x;
    return fma(shift, own.y, fma(scale, exact, sum));
#elif defined(SUMS)
    precise const float exact = products - own;
    return fma(scale, exact, sum);
#else
    return fma(scale, products, sum);
#endif
}

#ifdef DOT2
// sum + x.x * y.x + x.y * y.y, in float32.
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2(f16vec2 x, f16vec2 y, float sum);
#endif

// Adds the products of a run of each row of weights by that of each row of x to sums. in_tile: the run's place among eight; number: that among
// those that are staged.
void add_run(Run own[MOST_ROWS], uint in_tile, uint number) {
    vec2 parts[ROWS * BATCH];
    [[unroll]] for (uint s = 0u; s < ROWS * BATCH; ++s) parts[s] = vec2(0.0);
    uvec4 next = x_pairs[number]; // read a step before
    [[unroll]] for (uint i = 0u; i < PAIRS * BATCH; ++i) {
        const uint pair = i / BATCH, row = i % BATCH;
        const uvec4 x = next;
        if (i + 1u < PAIRS * BATCH) next = x_pairs[(i + 1u) * MAX_RUNS + number];
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
#ifdef DOT2
                parts[r * BATCH + row].x = dot2(unpackFloat2x16(word_of_pair(own[r], pair, c)), unpackFloat2x16(x[c]), parts[r * BATCH + row].x);
#else
                parts[r * BATCH + row] = fma(PAIR_OF(own[r], pair, c), halves(x[c]), parts[r * BATCH + row]);
#endif
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        const Scales scales = scales_of(own[r], in_tile);
        [[unroll]] for (uint row = 0u; row < BATCH; ++row) {
            const vec2 part = parts[r * BATCH + row];
            const uint at = row * MAX_RUNS + number;
#ifdef SUMS
#define SUM_AT(i) x_sums[i]
#else
#define SUM_AT(i) SUM(0.0)
#endif
            float sum = sums[r * BATCH + row];
#if PARTS == 2
            sum = finished(sum, part.x, SUM_AT(at), scales.scale.x, scales.shift.x);
            sum = finished(sum, part.y, SUM_AT(BATCH * MAX_RUNS + at), scales.scale.y, scales.shift.y);
#else
            precise const float both = part.x + part.y;
            sum = finished(sum, both, SUM_AT(at), scales.scale.x, scales.shift.x);
#endif
            sums[r * BATCH + row] = sum;
        }
    }
}
