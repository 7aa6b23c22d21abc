// Windows of x as loops compute them, compiled for LANES values in a vector and ROWS output channels
// times COLUMNS vectors in registers. Included by conv.cpp, in a namespace for each.
//
//   x  --areas--> vectors --sums--> tiles of results --results--> steps, rows in their places
#include "cpu_kernels/conv/pack_input_simd.hpp"
#include "cpu_kernels/conv/microkernel_simd.hpp"
#include "cpu_kernels/conv/store_simd.hpp"
#include "cpu_kernels/conv/pointwise_simd.hpp"
#include "cpu_kernels/conv/depthwise_simd.hpp"

void convolve(const Conv& conv)
{
    if (conv.window.is_pointwise() && conv.results > 1 && conv.count >= LANES)
        return convolve_points(conv);
    if (is_abreast(conv))
        return convolve_abreast(conv);
    const Layout layout(conv.window);
    const size_t most = conv.results == 1 ? MOST_VECTORS : COLUMNS;
    each_part(conv.window, layout.first(conv.channels), [&](const Part& part) {
        Ending ending(conv);
        Reader reader(layout, part, conv.channels, most, 0.0f);
        each_group(reader, conv.x, conv.groups, [&](size_t group) {
            convolve_group(ending, part, reader.area, group);
        });
    });
}

// How many places each result of a part counts.
INLINED std::vector<float> counted(const Pool& pool, const Part& part, const Area& area)
{
    std::vector<float> counts(area.count + WIDEST, 1.0f);
    for (size_t row = 0; row < part.rows; ++row)
        for (size_t column = 0; column < part.columns; ++column)
            counts[row * area.pitch + column] =
                std::max(1.0f, pool.counts[0][part.depth] * pool.counts[1][part.row + row]
                                   * pool.counts[2][part.column + column]);
    return counts;
}

template <Pooling KIND>
INLINED void pool_planes(const Pool& pool)
{
    const Layout layout(pool.window);
    constexpr float fill = KIND == LARGEST ? -std::numeric_limits<float>::infinity() : 0.0f;
    const size_t to = pool.window.results();
    alignas(64) float made[WIDEST];
    each_part(pool.window, layout.first(1), [&](const Part& part) {
        Reader reader(layout, part, 1, MOST_VECTORS, fill);
        const Area& area = reader.area;
        const auto counts = KIND == MEAN ? counted(pool, part, area) : std::vector<float>{};
        each_group(reader, pool.x, pool.planes, [&](size_t plane) {
            each_tile(area.count, MOST_VECTORS, [&](size_t first, size_t vectors) {
                pooled_of<KIND>(vectors, std::make_index_sequence<MOST_VECTORS>())(
                    area, area.x + first, made);
                const size_t width = vectors * LANES;
                if (KIND == MEAN)
                    each_value(made, width, [&](size_t i) { return made[i] / counts[first + i]; });
                each_run(pool.window, part, area.pitch, first,
                         std::min(width, area.count - first),
                         [&](size_t at, size_t place, size_t run) {
                             copy(pool.out + plane * to + place, made + at, run);
                         });
            });
        });
    });
}

void combine(const Pool& told)
{
    if (told.kind == LARGEST)
        pool_planes<LARGEST>(told);
    else
        pool_planes<MEAN>(told);
}
