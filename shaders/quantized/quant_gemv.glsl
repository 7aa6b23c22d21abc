// A product of few rows by quantized weights, as a group of a GPU computes it: an invocation has ROWS x 4 results over a slice of the
// runs of k. The shader defines ROWS, and LEFT(i, q), four values of row i of a in the run `number`. Results of a row have the same bits for
// each ROWS: sums are in one order, and multiply-adds are fma.
const uint VEC4S_PER_GROUP = gl_WorkGroupSize.y;
const uint SLICES = gl_WorkGroupSize.x;
shared vec4 slices[VEC4S_PER_GROUP * SLICES];

// Four multiply-adds, where `+ dot()` is another addition.
float plus_dot(float sum, vec4 x, vec4 y) { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }

#ifdef SUMS
#define ADD_TO_ALL(i, left) all[i] += left.x + left.y + (left.z + left.w);
#define PLUS_SHIFT(i, j, part) sums[i][j] = fma(all[i], shift_of_codes(scales[j]).part, sums[i][j]);
#else
#define ADD_TO_ALL(i, left)
#define PLUS_SHIFT(i, j, part)
#endif
// Written out, as Mesa leaves a loop over so much a loop, and takes codes apart by numbers that it does not know then.
#define ADD_FOUR(q) { \
    vec4 codes[4]; \
    for (uint j = 0u; j < 4u; ++j) codes[j] = codes_of(runs[j], q); \
    for (uint i = 0u; i < ROWS; ++i) { \
        const vec4 left = LEFT(i, q); \
        for (uint j = 0u; j < 4u; ++j) parts[i][j] = plus_dot(parts[i][j], left, codes[j]); \
        ADD_TO_ALL(i, left) \
    } }
#define FINISH_PART(part) \
    for (uint i = 0u; i < ROWS; ++i) { \
        for (uint j = 0u; j < 4u; ++j) { \
            sums[i][j] = fma(parts[i][j], scales[j].scale.part, sums[i][j]); \
            PLUS_SHIFT(i, j, part) \
        } \
        parts[i] = vec4(0.0); \
        all[i] = 0.0; \
    }
#if PARTS == 2
#define FINISH_FIRST FINISH_PART(x)
#define FINISH_LAST FINISH_PART(y)
#else
#define FINISH_FIRST
#define FINISH_LAST FINISH_PART(x)
#endif
// Adds the products of run `number` to sums[ROWS]. first: where the weight starts. column: that of the first result; last: the last one
// that there is.
#define ADD_RUN(first, column, last) { \
    const Spot spot = spot_of(number % 8u); \
    Run runs[4]; \
    Scales scales[4]; \
    for (uint j = 0u; j < 4u; ++j) { \
        const uint start = ((first) + min((column) + j, last) * b_column) / UNIT; \
        const uint at = start + units_before(number / 8u); \
        const Head head = head_of(start, number / 8u, at); \
        scales[j] = scales_of(head, spot); \
        runs[j] = run_of(head, at, spot.number); \
    } \
    vec4 parts[ROWS]; \
    float all[ROWS]; \
    for (uint i = 0u; i < ROWS; ++i) { \
        parts[i] = vec4(0.0); \
        all[i] = 0.0; \
    } \
    ADD_FOUR(0) ADD_FOUR(1) ADD_FOUR(2) ADD_FOUR(3) \
    FINISH_FIRST \
    ADD_FOUR(4) ADD_FOUR(5) ADD_FOUR(6) ADD_FOUR(7) \
    FINISH_LAST }
