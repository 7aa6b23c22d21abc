// Products of ROWS rows of a by the weight that is read, for quant_gemv_merged.glsl: in float32.
uint row_at[ROWS]; // vec4s before a row in a
void begin_rows(uint first) {
    for (uint i = 0u; i < ROWS; ++i) row_at[i] = (a_offset + min(first + i, m - 1u) * k) / 4u;
}

float by[ROWS]; // the factor of a before the norm
float squares[ROWS]; // of the values of a row that this invocation has read
vec4 left_of(uint row, uint i) {
    const vec4 own = a[row_at[row] + i];
    if (NORMED == 0u) return own;
    const vec4 x = times(own, by[row]);
    squares[row] = fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, squares[row]))));
    precise const vec4 left = x * scale[scale_offset / 4u + i];
    return left;
}
#define LEFT(i, q) left_of(i, number * 8u + (q))
#include "quant_gemv.glsl"
shared float squares_of[VEC4S_PER_GROUP * SLICES];
shared uint largest_of[VEC4S_PER_GROUP * SLICES];

// The sums of all slices for slice 0, and in `squares` those of the whole row for all.
vec4 met(vec4 sum, uint row, uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    barrier(); // all have read the previous values
    slices[here] = sum;
    if (NORMED != 0u) squares_of[here] = squares[row];
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) {
            slices[here] += slices[here + apart * VEC4S_PER_GROUP];
            if (NORMED != 0u) squares_of[here] += squares_of[here + apart * VEC4S_PER_GROUP];
        }
    }
    barrier();
    if (NORMED != 0u) squares[row] = squares_of[own];
    return slices[own];
}

// The word of the largest magnitude of a row.
uint largest_of_row(uint row, uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    uint largest = 0u;
    for (uint i = slice; i < k / 4u; i += SLICES) largest = max(largest, largest_word(a[row_at[row] + i]));
    largest_of[here] = largest;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) largest_of[here] = max(largest_of[here], largest_of[here + apart * VEC4S_PER_GROUP]);
    }
    barrier();
    return largest_of[own];
}

// Four results of each row by the weight that is read, for all slices. from: where it starts. column, last: of it.
void dot_vec4s(uint from, uint column, uint last, uint own, uint slice, out vec4 results[ROWS]) {
    for (uint i = 0u; i < ROWS; ++i) by[i] = 1.0;
    for (uint pass = 0u; pass < 2u; ++pass) { // again where squares left their range: all slices know that
        vec4 sums[ROWS];
        for (uint i = 0u; i < ROWS; ++i) {
            sums[i] = vec4(0.0);
            squares[i] = 0.0;
        }
        for (uint number = slice; number < k / 32u; number += SLICES) {
            ADD_RUN(from, column, last)
        }
        bool lost = false;
        for (uint i = 0u; i < ROWS; ++i) {
            results[i] = met(sums[i], i, own, slice);
            if (NORMED == 0u) continue;
            const float variance = squares[i] / float(k);
            const float rate = pass == 0u ? rate_of(variance, eps) : scale_of(variance, eps, by[i]);
            results[i] *= rate;
            if (pass == 1u || !is_lost(rate)) continue;
            barrier(); // all have read the previous values
            by[i] = power_for(largest_of_row(i, own, slice), eps);
            lost = true;
        }
        if (!lost) break;
    }
}
