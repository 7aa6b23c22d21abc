// Winograd's minimal filtering: TILE x TILE results of 3 x 3 windows with stride 1 from SIDE x SIDE products. Along one axis
// results = results_of(values_of(x) * points_of(w)), for vectors side by side; the other axis is done the same way after it.
// Everything is written out, as CPU drivers keep indexed arrays in memory and not in registers.
// Source: Lavin and Gray, Fast algorithms for convolutional neural networks, 2016.
const uint SIDE = TILE + 2u;

#if TILE == 4
#define LINE_ARGUMENTS(T) inout T d0, inout T d1, inout T d2, inout T d3, inout T d4, inout T d5
#define FOR_EACH_LINE(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u)
#define FOR_EACH_RESULT(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u)

#define VALUES_OF(T) \
    void values_of(LINE_ARGUMENTS(T)) { \
        const T even = d4 - 4.0 * d2; \
        const T odd = d3 - 4.0 * d1; \
        const T near = d4 - d2; \
        const T far = 2.0 * (d3 - d1); \
        d5 = d5 - 5.0 * d3 + 4.0 * d1; \
        d0 = 4.0 * d0 - 5.0 * d2 + d4; \
        d1 = even + odd; \
        d2 = even - odd; \
        d3 = near + far; \
        d4 = near - far; \
    }

// The results are the first four.
#define RESULTS_OF(T) \
    void results_of(LINE_ARGUMENTS(T)) { \
        const T near_sum = d1 + d2; \
        const T near = d1 - d2; \
        const T far_sum = d3 + d4; \
        const T far = d3 - d4; \
        d0 = d0 + near_sum + far_sum; \
        d1 = near + 2.0 * far; \
        d2 = near_sum + 4.0 * far_sum; \
        d3 = near + 8.0 * far + d5; \
    }

// The weights are the first three.
#define POINTS_OF(T) \
    void points_of(LINE_ARGUMENTS(T)) { \
        const T ends = d0 + d2; \
        const T wide = d0 / 24.0 + d2 / 6.0; \
        const T middle = d1; \
        d5 = d2; \
        d0 = d0 / 4.0; \
        d1 = (ends + middle) / -6.0; \
        d2 = (middle - ends) / 6.0; \
        d3 = wide + middle / 12.0; \
        d4 = wide - middle / 12.0; \
    }

#else
#define LINE_ARGUMENTS(T) inout T d0, inout T d1, inout T d2, inout T d3
#define FOR_EACH_LINE(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u)
#define FOR_EACH_RESULT(F) F(0, 0u) F(1, 1u)

#define VALUES_OF(T) \
    void values_of(LINE_ARGUMENTS(T)) { \
        const T middle = d1; \
        d0 -= d2; \
        d3 -= middle; \
        d1 = middle + d2; \
        d2 -= middle; \
    }

#define RESULTS_OF(T) \
    void results_of(LINE_ARGUMENTS(T)) { \
        const T near = d1 - d2; \
        d0 += d1 + d2; \
        d1 = near + d3; \
    }

#define POINTS_OF(T) \
    void points_of(LINE_ARGUMENTS(T)) { \
        const T ends = d0 + d2; \
        const T middle = d1; \
        d3 = d2; \
        d1 = 0.5 * (ends + middle); \
        d2 = 0.5 * (ends - middle); \
    }
#endif
