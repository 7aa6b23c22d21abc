// Products of one row of a by the weight that is read, for quant_gemv_merged.glsl: of codes of 8 bits. A group norms and quantizes the
// row once, into shared memory, for all of its columns.
#include "quantize_run.glsl"
#include "q8_dot.glsl"

const uint VEC4S_PER_GROUP = gl_WorkGroupSize.y;
const uint SLICES = gl_WorkGroupSize.x;
const uint LANES = VEC4S_PER_GROUP * SLICES;
shared vec4 slices[LANES];
shared uvec4 codes[RUNS * 2u];
shared float scale_of_run[RUNS];
shared vec2 sums_of_run[RUNS];
shared float squares_of[LANES];
shared uint largest_of[LANES];

// The sum of the squares of the row, and the word of its largest magnitude, for all lanes.
float squares_of_row(float by, out uint largest) {
    const uint lane = gl_LocalInvocationIndex;
    float squares = 0.0;
    largest = 0u;
    for (uint i = lane; i < RUNS * 8u; i += LANES) {
        const vec4 own = a[a_offset / 4u + row_at + i];
        const vec4 x = times(own, by);
        squares += dot(x, x);
        largest = max(largest, largest_word(own));
    }
    barrier(); // what was there before has been read
    squares_of[lane] = squares;
    largest_of[lane] = largest;
    for (uint apart = LANES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (lane < apart) {
            squares_of[lane] += squares_of[lane + apart];
            largest_of[lane] = max(largest_of[lane], largest_of[lane + apart]);
        }
    }
    barrier();
    largest = largest_of[0];
    return squares_of[0];
}

void begin_row(uint row) {
    row_at = row * k / 4u;
    float by = 1.0;
    float rate = 1.0;
    if (NORMED != 0u) {
        uint largest;
        rate = rate_of(squares_of_row(1.0, largest) / float(k), eps);
        if (is_lost(rate)) { // all lanes know that
            by = power_for(largest, eps);
            rate = scale_of(squares_of_row(by, largest) / float(k), eps, by);
        }
    }
    barrier(); // the row before has been read
    for (uint run = gl_LocalInvocationIndex; run < RUNS; run += LANES) {
        vec4 fours[8];
        for (uint q = 0u; q < 8u; ++q) {
            const vec4 own = a[a_offset / 4u + row_at + run * 8u + q];
            fours[q] = NORMED == 0u ? own : times(own, by) * rate * scale[scale_offset / 4u + run * 8u + q];
        }
#if LOW == 8
        const QuantizedRun made = quantize_run(fours, true);
#else
        const QuantizedRun made = quantize_run(fours, false);
#endif
        codes[run * 2u] = made.low;
        codes[run * 2u + 1u] = made.more;
        scale_of_run[run] = made.told.x;
        sums_of_run[run] = made.told.yz;
    }
    barrier();
}

// Four results of a row by the weight that is read, for all slices. from: where it starts. column, last: of it.
vec4 dot_vec4(uint from, uint column, uint last, uint own, uint slice) {
    vec4 sum = vec4(0.0);
    for (uint number = slice; number < RUNS; number += SLICES) {
        const Spot spot = spot_of(number % 8u);
        const uvec4 left_low = codes[number * 2u], left_more = codes[number * 2u + 1u];
        const float by = scale_of_run[number];
#if PARTS == 2
        const vec2 all = sums_of_run[number];
#else
        const vec2 all = vec2(sums_of_run[number].x + sums_of_run[number].y, 0.0);
#endif
        for (uint j = 0u; j < 4u; ++j) {
            const uint start = (from + min(column + j, last) * b_column) / UNIT;
            const uint at = start + units_before(number / 8u);
            const Head head = head_of(start, number / 8u, at);
            const Scales scales = scales_of(head, spot);
            const Run run = run_of(head, at, spot.number);
            const vec2 dots = sums_of(SIGNED_OF(run.low), SIGNED_OF(run.more), left_low, left_more);
            sum[j] += by * dot(dots, scales.scale) + dot(all, SHIFT_OF(scales));
        }
    }
    const uint here = slice * VEC4S_PER_GROUP + own;
    barrier(); // what was there before has been read
    slices[here] = sum;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) slices[here] += slices[here + apart * VEC4S_PER_GROUP];
    }
    barrier();
    return slices[own];
}
