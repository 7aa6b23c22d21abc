// Products of ROWS rows of a by the weight that is read, for quant_gemv_merged.glsl: of codes of 8 bits. A group norms and quantizes
// the rows once, into shared memory, for all of its columns.
#include "quantize_run.glsl"
#include "q8_dot.glsl"

const uint VEC4S_PER_GROUP = gl_WorkGroupSize.y;
const uint SLICES = gl_WorkGroupSize.x;
const uint LANES = VEC4S_PER_GROUP * SLICES;
shared vec4 slices[LANES];
shared uvec4 codes[ROWS * RUNS * 2u];
shared float scale_of_run[ROWS * RUNS];
shared vec2 sums_of_run[ROWS * RUNS];
shared float squares_of[LANES];
shared uint largest_of[LANES];

// The sum of the squares of the row that starts at a vec4, and the word of its largest magnitude, for all lanes.
float squares_of_row(uint row_at, float by, out uint largest) {
    const uint lane = gl_LocalInvocationIndex;
    float squares = 0.0;
    largest = 0u;
    for (uint i = lane; i < RUNS * 8u; i += LANES) {
        const vec4 own = a[row_at + i];
        const vec4 x = times(own, by);
        squares = fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, squares))));
        largest = max(largest, largest_word(own));
    }
    barrier(); // all have read the previous values
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

void begin_rows(uint first_row) {
    for (uint row = 0u; row < ROWS; ++row) {
        const uint row_at = (a_offset + min(first_row + row, m - 1u) * k) / 4u;
        float by = 1.0;
        float rate = 1.0;
        if (NORMED != 0u) {
            uint largest;
            rate = rate_of(squares_of_row(row_at, 1.0, largest) / float(k), eps);
            if (is_lost(rate)) { // all lanes know that
                by = power_for(largest, eps);
                rate = scale_of(squares_of_row(row_at, by, largest) / float(k), eps, by);
            }
        }
        barrier(); // the row before has been read
        for (uint run = gl_LocalInvocationIndex; run < RUNS; run += LANES) {
            vec4 fours[8];
            for (uint q = 0u; q < 8u; ++q) {
                const vec4 own = a[row_at + run * 8u + q];
                fours[q] = NORMED == 0u ? own : times(own, by) * rate * scale[scale_offset / 4u + run * 8u + q];
            }
#if LOW == 8
            const QuantizedRun quantized = quantize_run(fours, true);
#else
            const QuantizedRun quantized = quantize_run(fours, false);
#endif
            const uint place = row * RUNS + run;
            codes[place * 2u] = quantized.low;
            codes[place * 2u + 1u] = quantized.more;
            scale_of_run[place] = quantized.scale_sums.x;
            sums_of_run[place] = quantized.scale_sums.yz;
        }
    }
    barrier();
}

// Four results of each row by the weight that is read, for all slices. from: where it starts. column, last: of it.
void dot_vec4s(uint from, uint column, uint last, uint own, uint slice, out vec4 results[ROWS]) {
    vec4 sums[ROWS];
    for (uint row = 0u; row < ROWS; ++row) sums[row] = vec4(0.0);
    for (uint number = slice; number < RUNS; number += SLICES) {
        const Spot spot = spot_of(number % 8u);
        for (uint j = 0u; j < 4u; ++j) {
            const uint start = (from + min(column + j, last) * b_column) / UNIT;
            const uint at = start + units_before(number / 8u);
            const Head head = head_of(start, number / 8u, at);
            const Scales scales = scales_of(head, spot);
            const Run run = run_of(head, at, spot.number);
            for (uint row = 0u; row < ROWS; ++row) {
                const uint place = row * RUNS + number;
#if PARTS == 2
                const vec2 all = sums_of_run[place];
#else
                const vec2 all = vec2(sums_of_run[place].x + sums_of_run[place].y, 0.0);
#endif
                const vec2 dots = sums_of(SIGNED_OF(run.low), SIGNED_OF(run.more), codes[place * 2u], codes[place * 2u + 1u]);
                sums[row][j] = plus_run(sums[row][j], dots, scales.scale, scale_of_run[place], all, SHIFT_OF(scales));
            }
        }
    }
    const uint here = slice * VEC4S_PER_GROUP + own;
    for (uint row = 0u; row < ROWS; ++row) {
        barrier(); // all have read the previous values
        slices[here] = sums[row];
        for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
            barrier();
            if (slice < apart) slices[here] += slices[here + apart * VEC4S_PER_GROUP];
        }
        barrier();
        results[row] = slices[own];
    }
}
