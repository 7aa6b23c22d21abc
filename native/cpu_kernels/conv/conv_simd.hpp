// Convolution and pooling for one instruction set: LANES values in a vector, ROWS output channels
// times COLUMNS vectors in registers. conv.cpp includes it in one namespace for each.
//
//   x  --pack_input--> vectors --microkernel--> tiles of results --store--> epilogue, result
#include "cpu_kernels/conv/pack_input_simd.hpp"
#include "cpu_kernels/conv/microkernel_simd.hpp"
#include "cpu_kernels/conv/store_simd.hpp"
#include "cpu_kernels/conv/pointwise_simd.hpp"
#include "cpu_kernels/conv/depthwise_simd.hpp"

void convolve(const Conv& conv)
{
    if (conv.window.is_pointwise() && conv.out_channels > 1 && conv.count >= LANES)
        return convolve_pointwise(conv);
    if (is_depthwise(conv))
        return convolve_depthwise(conv);
    const InputLayout layout(conv.window);
    const size_t max_vectors = conv.out_channels == 1 ? MAX_VECTORS : COLUMNS;
    for_each_block(conv.window, layout.first(conv.channels), [&](const OutputBlock& block) {
        Epilogue epilogue(conv);
        InputPacker packer(layout, block, conv.channels, max_vectors, 0.0f);
        for_each_group(packer, conv.x, conv.groups, [&](size_t group) {
            convolve_group(epilogue, block, packer.packed_input, group);
        });
    });
}

// Return the divisors of a mean for each result of a block.
INLINED std::vector<float> window_counts(const Pool& pool, const OutputBlock& block,
                                         const PackedInput& packed_input)
{
    std::vector<float> counts(packed_input.count + WIDEST, 1.0f);
    for (size_t row = 0; row < block.rows; ++row)
        for (size_t column = 0; column < block.columns; ++column)
            counts[row * packed_input.pitch + column] =
                std::max(1.0f, pool.counts[0][block.depth] * pool.counts[1][block.row + row]
                                   * pool.counts[2][block.column + column]);
    return counts;
}

template <PoolKind KIND>
INLINED void pool_all(const Pool& pool)
{
    const InputLayout layout(pool.window);
    constexpr float fill = KIND == MAX ? -std::numeric_limits<float>::infinity() : 0.0f;
    const size_t to = pool.window.output_size();
    alignas(64) float tile[WIDEST];
    for_each_block(pool.window, layout.first(1), [&](const OutputBlock& block) {
        InputPacker packer(layout, block, 1, MAX_VECTORS, fill);
        const PackedInput& packed_input = packer.packed_input;
        const auto counts =
            KIND == MEAN ? window_counts(pool, block, packed_input) : std::vector<float>{};
        for_each_group(packer, pool.x, pool.planes, [&](size_t plane) {
            for_each_tile(packed_input.count, MAX_VECTORS, [&](size_t first, size_t vectors) {
                pool_kernel_for<KIND>(vectors, std::make_index_sequence<MAX_VECTORS>())(
                    packed_input, packed_input.x + first, tile);
                const size_t width = vectors * LANES;
                if (KIND == MEAN)
                    each_value(tile, width, [&](size_t i) { return tile[i] / counts[first + i]; });
                for_each_run(pool.window, block, packed_input.pitch, first,
                         std::min(width, packed_input.count - first),
                         [&](size_t at, size_t place, size_t run) {
                             copy(pool.out + plane * to + place, tile + at, run);
                         });
            });
        });
    });
}

void pool_planes(const Pool& params)
{
    if (params.kind == MAX)
        pool_all<MAX>(params);
    else
        pool_all<MEAN>(params);
}
