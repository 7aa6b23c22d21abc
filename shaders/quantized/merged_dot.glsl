// Products of one row of a by the weight that is read, for quant_gemv_merged.glsl: in float32.
void begin_row(uint row) { row_at = row * k / 4u; }

float by; // what a is multiplied by first
float squares; // of what this invocation has seen of it
vec4 left_of(uint i) {
    const vec4 own = a[a_offset / 4u + row_at + i];
    if (NORMED == 0u) return own;
    const vec4 x = times(own, by);
    squares += dot(x, x);
    return x * scale[scale_offset / 4u + i];
}
#define LEFT(i, q) left_of(number * 8u + (q))
#include "quant_gemv.glsl"
shared float squares_of[VEC4S_PER_GROUP * SLICES];
shared uint largest_of[VEC4S_PER_GROUP * SLICES];

// The sums of all slices for slice 0, and in `squares` those of the whole row for all.
vec4 met(vec4 sum, uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    barrier(); // what was there before has been read
    slices[here] = sum;
    if (NORMED != 0u) squares_of[here] = squares;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) {
            slices[here] += slices[here + apart * VEC4S_PER_GROUP];
            if (NORMED != 0u) squares_of[here] += squares_of[here + apart * VEC4S_PER_GROUP];
        }
    }
    barrier();
    if (NORMED != 0u) squares = squares_of[own];
    return slices[own];
}

// The word of the largest magnitude of the row.
uint largest_of_row(uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    uint largest = 0u;
    for (uint i = slice; i < k / 4u; i += SLICES) largest = max(largest, largest_word(a[a_offset / 4u + row_at + i]));
    largest_of[here] = largest;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) largest_of[here] = max(largest_of[here], largest_of[here + apart * VEC4S_PER_GROUP]);
    }
    barrier();
    return largest_of[own];
}

// Four results of a row by the weight that is read, for all slices. from: where it starts. column, last: of it.
vec4 dot_vec4(uint from, uint column, uint last, uint own, uint slice) {
    by = 1.0;
    vec4 sum;
    for (uint pass = 0u; pass < 2u; ++pass) { // again where squares left their range: all slices know that
        vec4 sums[ROWS];
        sums[0] = vec4(0.0);
        squares = 0.0;
        for (uint number = slice; number < k / 32u; number += SLICES) {
            ADD_RUN(from, column, last)
        }
        sum = met(sums[0], own, slice);
        if (NORMED == 0u) break;
        const float variance = squares / float(k);
        const float rate = pass == 0u ? rate_of(variance, eps) : scale_of(variance, eps, by);
        sum *= rate;
        if (!is_lost(rate) || pass == 1u) break;
        by = power_for(largest_of_row(own, slice), eps);
    }
    return sum;
}

