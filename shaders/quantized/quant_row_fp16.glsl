// A row of x in shared memory as float16, in the order of codes (quant_runs.glsl), times a power of two that brings its largest magnitude to
// 2^14 or more: values beyond float16's range stay finite. And the sums of each run that are subtracted from products by codes.
const uint PAIRS = 4u;
shared uvec4 x_pairs[PAIRS * MAX_RUNS];
#ifdef SHIFTS
#define SUM vec2 // of x by what pairs have beside codes; of x
#define SUM_OF(stored, plain) vec2(stored, plain)
#else
#define SUM float
#define SUM_OF(stored, plain) (stored)
#endif
#ifdef SUMS
shared SUM x_sums[PARTS * MAX_RUNS];
#endif
const uint LARGEST = 14u;
shared uvec2 measured[SUBGROUPS];

// Of the row: the sum of squares, and the word of the largest magnitude.
float squares;
uint largest;

void reduce_row() {
    squares = subgroupAdd(squares);
    largest = subgroupMax(largest);
    barrier(); // what was there before has been read
    if (subgroupElect()) measured[gl_SubgroupID] = uvec2(floatBitsToUint(squares), largest);
    barrier();
    squares = 0.0;
    largest = 0u;
    for (uint i = 0u; i < SUBGROUPS; ++i) {
        const uvec2 other = measured[i];
        squares += uintBitsToFloat(other.x);
        largest = max(largest, other.y);
    }
}

float by; // what a is multiplied by first
vec4 left_of(uint i) {
    const vec4 own = times(a[a_offset / 4u + i], by);
    return NORMED == 0u ? own : own * scale[scale_offset / 4u + i];
}

// Measures the row; returns what it is multiplied by after all, apart from a power of two.
float measure_row(uint lane) {
    by = 1.0;
    float rate = 1.0;
    for (uint pass = 0u; pass < 3u; ++pass) { // again where squares left their range: first a alone, to find a power of two for it
        squares = 0.0;
        largest = 0u;
        for (uint i = lane; i < k / 4u; i += gl_WorkGroupSize.x) {
            const vec4 own = times(a[a_offset / 4u + i], by);
            if (NORMED != 0u) squares += dot(own, own);
            largest = max(largest, largest_word(pass == 1u ? own : left_of(i)));
        }
        reduce_row();
        if (NORMED == 0u) break;
        const float variance = squares / float(k);
        if (pass == 1u) by = power_for(largest, eps);
        else rate = pass == 0u ? rate_of(variance, eps) : scale_of(variance, eps, by);
        if (pass == 0u && !is_lost(rate) && largest != 0x7f800000u) break;
    }
    return rate;
}

// Returns the factor of sums of products. Of a row with infinities these are infinite by the sign of the weight there, or NaN.
float stage_row() {
    fill_numbers();
    const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    const float rate = measure_row(lane);
    const bool finite = largest < 0x7f800000u;
    const uint biased = finite ? uint(clamp(int(LARGEST + 254u) - int(largest >> 23), 1, 253)) : 1u;
    const float power = uintBitsToFloat(biased << 23);
    if (!finite) by = power; // twice: what is finite beside infinities is 0
    const float most = float(2u << LARGEST);
    for (uint unit = lane; unit < k / 8u; unit += gl_WorkGroupSize.x) {
        const uint run = unit / PAIRS, i = unit % PAIRS;
        const vec4 first = clamp(left_of(8u * run + FIRST_OF(i)) * power, -most, most);
        const vec4 second = clamp(left_of(8u * run + SECOND_OF(i)) * power, -most, most);
#ifdef FLOATS
        x_pairs[i * MAX_RUNS + run] = uvec4(packed(first.xy), packed(first.zw), packed(second.xy), packed(second.zw));
#else
        const vec4 place = places_of(i), inverse = inverse_places_of(i);
        uvec4 pairs;
        vec2 stored = vec2(0.0), plain = vec2(0.0);
        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            pairs[c] = packed(vec2(first[c], second[c]) * inverse[c]);
            const vec2 rounded = halves(pairs[c] ^ n >> 31); // Mesa 25 adds values before they are rounded, where it sees the rounding
            stored += rounded;
            plain += rounded * place[c];
        }
        x_pairs[i * MAX_RUNS + run] = pairs;
#ifdef SUMS
        stored *= 1024.0;
#ifndef SHIFTS
        stored += float(ZERO) * plain;
#endif
        stored += subgroupShuffleXor(stored, 1u); // of the four pairs of a run
        stored += subgroupShuffleXor(stored, 2u);
#ifdef SHIFTS
        plain += subgroupShuffleXor(plain, 1u);
        plain += subgroupShuffleXor(plain, 2u);
#endif
        if (i == 0u) {
#if PARTS == 1
            x_sums[run] = SUM_OF(stored.x + stored.y, plain.x + plain.y);
#else
            x_sums[run] = SUM_OF(stored.x, plain.x);
            x_sums[MAX_RUNS + run] = SUM_OF(stored.y, plain.y);
#endif
        }
#endif
#endif
    }
    barrier();
    const uint inverse = finite ? 254u - biased << 23 : largest;
    return uintBitsToFloat(inverse) * rate;
}

#ifdef SHIFTS
#define FINISHED(part, products, own) scales.scale.part * ((products) - (own).x) + scales.shift.part * (own).y
#elif defined(SUMS)
#define FINISHED(part, products, own) scales.scale.part * ((products) - (own))
#else
#define FINISHED(part, products, own) scales.scale.part * (products)
#endif

#ifdef DOT2
// sum + x.x * y.x + x.y * y.y, in float32.
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2(f16vec2 x, f16vec2 y, float sum);
#endif

// Adds the products of a run of each row of weights to sums. number: of the run in its tile.
void add_run(Run own[MOST_ROWS], uint run, uint number, inout float sums[MOST_ROWS]) {
    vec2 parts[MOST_ROWS] = vec2[](vec2(0.0), vec2(0.0), vec2(0.0), vec2(0.0));
    uvec4 next = x_pairs[run]; // read a step before
    [[unroll]] for (uint i = 0u; i < PAIRS; ++i) {
        const uvec4 x = next;
        if (i + 1u < PAIRS) next = x_pairs[(i + 1u) * MAX_RUNS + run];
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
#ifdef DOT2
                parts[r].x = dot2(unpackFloat2x16(word_of_pair(own[r], i, c)), unpackFloat2x16(x[c]), parts[r].x);
#else
                parts[r] = fma(PAIR_OF(own[r], i, c), halves(x[c]), parts[r]);
#endif
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        const Scales scales = scales_of(own[r], number);
#if PARTS == 2
        sums[r] += FINISHED(x, parts[r].x, x_sums[run]) + (FINISHED(y, parts[r].y, x_sums[MAX_RUNS + run]));
#else
        sums[r] += FINISHED(x, parts[r].x + parts[r].y, x_sums[run]);
#endif
    }
}
