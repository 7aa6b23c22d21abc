// Convolution, transposed convolution and pooling of float32 with one to three spatial axes, and
// the loops of native programs that run them. bindings.cpp has the functions that Python calls.
//
// The kernels use the vector extensions of GCC and Clang; GCC compiles them for three instruction
// sets on x86. Without these extensions there are no kernels, and numpy computes the ops. Examples:
// tests/ops/native/test_conv_loops.py.
#include "cpu_kernels/conv/conv.hpp"

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

namespace baseline {
constexpr size_t LANES = 4, ROWS = 4, COLUMNS = 2, WIDE_TILE_ROWS = 0;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace baseline

#ifdef MULTIVERSION
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define VECTOR_MAX _mm256_max_ps
#define VECTOR_MIN _mm256_min_ps
namespace avx2 {
constexpr size_t LANES = 8, ROWS = 4, COLUMNS = 3, WIDE_TILE_ROWS = 0;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace avx2
#undef VECTOR_MAX
#undef VECTOR_MIN
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
// masked: GCC warns of an undefined operand of the other intrinsic
#define VECTOR_MAX(a, b) _mm512_mask_max_ps(a, 0xffff, a, b)
#define VECTOR_MIN(a, b) _mm512_mask_min_ps(a, 0xffff, a, b)
namespace avx512 {
constexpr size_t LANES = 16, ROWS = 8, COLUMNS = 3, WIDE_TILE_ROWS = 6;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace avx512
#undef VECTOR_MAX
#undef VECTOR_MIN
#pragma GCC pop_options

bool has_avx512()
{
    static const bool has = has_avx2_f16c() && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq");
    return has;
}
#else
namespace avx2 = baseline;
namespace avx512 = baseline;
bool has_avx512() { return false; }
#endif

} // namespace

void convolve(const Conv& params, int wide)
{
    if (wide > 1 && has_avx512())
        avx512::convolve(params);
    else
        wide > 0 && has_avx2_f16c() ? avx2::convolve(params) : baseline::convolve(params);
}

void pool_planes(const Pool& params, int wide)
{
    if (wide > 1 && has_avx512())
        avx512::pool_planes(params);
    else
        wide > 0 && has_avx2_f16c() ? avx2::pool_planes(params) : baseline::pool_planes(params);
}

namespace {

// -- loops of native programs ---------------------------------------------------------------------

constexpr size_t WINDOW_PARAMS = 6 * AXES; // int_params of a window

// Read the sizes, kernel, output sizes, stride, dilation and pad_begin of three axes each.
Window read_window(const LoopParams& params, size_t at)
{
    require(params.int_params.size() >= at + WINDOW_PARAMS, "expected a window");
    Window window{};
    const auto three = [&](auto& to) {
        for (auto& channels_per_piece : to)
            channels_per_piece = params.int_params[at++];
    };
    three(window.sizes);
    three(window.kernel);
    three(window.out);
    three(window.stride);
    three(window.dilation);
    three(window.pad_begin);
    return window;
}

// Refuse sizes whose products overflow, or exceed what a slot can hold.
void require_sizes(const Window& window, std::initializer_list<size_t> others)
{
    double broadcast = 1;
    for (const size_t size : others)
        broadcast *= std::max(1.0, static_cast<double>(size));
    const auto volume = [](const Sizes& sizes) {
        return static_cast<double>(sizes[0]) * static_cast<double>(sizes[1])
            * static_cast<double>(sizes[2]);
    };
    require(broadcast < 0x1p50 && volume(window.sizes) < 0x1p50 && volume(window.out) < 0x1p50
                && volume(window.kernel) < 0x1p50,
            "expected sizes below 2^50");
}

// A piece is a range of output channels of one image (of whole groups, if there are several), or,
// for pointwise convolution, a span of at least SPAN positions.
struct ConvLoop : Loop {
    Conv conv{};
    FusedProgram program;
    size_t images, channels_per_piece, spans; // spans of a plane
    bool has_bias, wide;
    static constexpr size_t SPAN = 64;

    void run(const Operands& operands, size_t number) const override
    {
        const size_t broadcast = conv.groups * conv.out_channels,
                     pieces_per_image = (broadcast + channels_per_piece - 1) / channels_per_piece;
        const size_t piece = number / spans, span = number % spans,
                     places = conv.window.input_size();
        const size_t image = piece / pieces_per_image,
                     first = piece % pieces_per_image * channels_per_piece;
        const size_t count = std::min(channels_per_piece, broadcast - first),
                     plane = conv.window.output_size();
        const size_t x_image = conv.groups * conv.channels * conv.window.input_size();
        Conv piece_conv = conv;
        piece_conv.program = &program;
        piece_conv.x = operands.get<float>(0) + image * x_image;
        if (conv.groups == 1) {
            piece_conv.out_channels = count;
        } else {
            piece_conv.groups = count / conv.out_channels;
            piece_conv.x += first / conv.out_channels * conv.channels * conv.window.input_size();
        }
        const size_t start = (image * broadcast + first) * plane;
        piece_conv.w = operands.get<UnalignedFloat>(1) + first * conv.channels * conv.window.taps();
        piece_conv.bias = has_bias ? operands.get<float>(2) + first : nullptr;
        piece_conv.residual =
            program.operands > 1 ? operands.get<float>(2 + has_bias) + start : nullptr;
        piece_conv.out = operands.get<float>(1 + has_bias + program.operands) + start;
        piece_conv.start = places / SPAN * span / spans * SPAN;
        piece_conv.count = (span + 1 < spans ? places / SPAN * (span + 1) / spans * SPAN : places)
            - piece_conv.start;
        convolve(piece_conv, wide ? 2 : 0);
    }

    void add_extents(Extents& extents) const override
    {
        const auto as_int64 = [](size_t value) { return static_cast<int64_t>(value); };
        const int64_t broadcast = as_int64(conv.groups * conv.out_channels),
                      number = as_int64(images);
        extents.add_dense(0, 4,
                          {number, as_int64(conv.groups), as_int64(conv.channels),
                           as_int64(conv.window.input_size())});
        extents.add_dense(1, 4, {broadcast, as_int64(conv.channels), as_int64(conv.window.taps())});
        extents.add_dense(2, 4, {has_bias ? broadcast : 0});
        if (program.operands > 1)
            extents.add_dense(2 + has_bias, 4,
                              {number, broadcast, as_int64(conv.window.output_size())});
        extents.add_dense(1 + has_bias + program.operands, 4,
                          {number, broadcast, as_int64(conv.window.output_size())});
    }
};

// Transposed weights, and the products of all taps. Buffers of a thread, reused unless they are
// large.
thread_local std::vector<float> transposed_weights, tap_products;
constexpr size_t MAX_KEPT_FLOATS = 1 << 22;

// Transposed convolution as a matmul, whose rows are output channels and taps, followed by col2im.
// A piece is a range of output channels of one image.
struct TransposeLoop : Loop {
    Window window; // of the gradient convolution: x is its output
    size_t images, channels, out_channels, groups, channels_per_piece;
    bool has_bias, wide;

    void run(const Operands& operands, size_t piece) const override
    {
        const size_t broadcast = groups * out_channels,
                     pieces = (broadcast + channels_per_piece - 1) / channels_per_piece;
        const size_t image = piece / pieces, first = piece % pieces * channels_per_piece;
        const size_t end = std::min(first + channels_per_piece, broadcast), taps = window.taps();
        const size_t max_channels = std::max<size_t>(1, L2_FLOATS / (taps * window.input_size()));
        for (size_t channel = first; channel < end;) {
            const size_t group = channel / out_channels;
            const size_t channel_count =
                std::min({max_channels, end - channel, (group + 1) * out_channels - channel});
            multiply(operands, image, group, channel % out_channels, channel_count);
            for (size_t offset = 0; offset < channel_count; ++offset, ++channel) {
                float* out = operands.get<float>(2 + has_bias)
                    + (image * broadcast + channel) * window.output_size();
                const float bias = has_bias ? operands.get<float>(2)[channel] : 0.0f;
                std::fill_n(out, window.output_size(), bias);
                for (size_t tap = 0; tap < taps; ++tap)
                    add(out, tap_products.data() + (offset * taps + tap) * window.input_size(),
                        tap);
            }
        }
        if (tap_products.capacity() > MAX_KEPT_FLOATS)
            std::vector<float>().swap(tap_products);
    }

    void add_extents(Extents& extents) const override
    {
        const auto as_int64 = [](size_t value) { return static_cast<int64_t>(value); };
        const int64_t broadcast = as_int64(groups * out_channels), number = as_int64(images);
        extents.add_dense(
            0, 4, {number, as_int64(groups), as_int64(channels), as_int64(window.input_size())});
        extents.add_dense(1, 4, {as_int64(channels), broadcast, as_int64(window.taps())});
        extents.add_dense(2, 4, {has_bias ? broadcast : 0});
        extents.add_dense(2 + has_bias, 4, {number, broadcast, as_int64(window.output_size())});
    }

    // Rows: (channel, tap) of the output. Columns: positions of x.
    void multiply(const Operands& operands, size_t image, size_t group, size_t first,
                  size_t channel_count) const
    {
        const size_t taps = window.taps(), rows = channel_count * taps,
                     planes = window.input_size();
        const UnalignedFloat* w =
            operands.get<UnalignedFloat>(1) + group * channels * out_channels * taps + first * taps;
        transposed_weights.resize(std::max(transposed_weights.size(), rows * channels));
        tap_products.resize(std::max(tap_products.size(), rows * planes));
        for (size_t channel = 0; channel < channels; ++channel)
            for (size_t row = 0; row < rows; ++row)
                transposed_weights[row * channels + channel] =
                    w[channel * out_channels * taps + row];
        static const FusedProgram none;
        Conv params{};
        params.window = {{1, 1, planes}, {1, 1, 1}, {1, 1, planes},
                         {1, 1, 1},      {1, 1, 1}, {0, 0, 0}};
        params.channels = channels;
        params.out_channels = rows;
        params.groups = 1;
        params.x = operands.get<float>(0) + (image * groups + group) * channels * planes;
        params.w = reinterpret_cast<const UnalignedFloat*>(transposed_weights.data());
        params.out = tap_products.data();
        params.program = &none;
        params.count = planes;
        convolve(params, wide ? 2 : 0);
    }

    // Add the contributions of one tap to the output (col2im).
    void add(float* out, const float* part, size_t tap) const
    {
        const Sizes at{tap / (window.kernel[1] * window.kernel[2]),
                       tap / window.kernel[2] % window.kernel[1], tap % window.kernel[2]};
        const auto place = [&](size_t axis, size_t of_x) {
            return static_cast<ptrdiff_t>(of_x) * window.stride[axis] - window.pad_begin[axis]
                + static_cast<ptrdiff_t>(at[axis]) * window.dilation[axis];
        };
        const auto inside = [&](size_t axis, size_t of_x) {
            return place(axis, of_x) >= 0
                   && place(axis, of_x) < static_cast<ptrdiff_t>(window.out[axis]);
        };
        size_t from = 0, end = window.sizes[2];
        while (from < end && !inside(2, from))
            ++from;
        while (end > from && !inside(2, end - 1))
            --end;
        for (size_t depth = 0; depth < window.sizes[0]; ++depth)
            for (size_t row = 0; row < window.sizes[1]; ++row, part += window.sizes[2]) {
                if (!inside(0, depth) || !inside(1, row))
                    continue;
                float* line =
                    out + (place(0, depth) * window.out[1] + place(1, row)) * window.out[2];
                const ptrdiff_t step = window.stride[2], first = place(2, 0);
                for (size_t column = from; column < end; ++column)
                    line[first + static_cast<ptrdiff_t>(column) * step] += part[column];
            }
    }
};

// A piece is a range of planes.
struct PoolLoop : Loop {
    Pool pool{};
    size_t pieces;
    bool wide;

    void run(const Operands& operands, size_t piece) const override
    {
        const size_t first = pool.planes * piece / pieces;
        Pool piece_pool = pool;
        piece_pool.planes = pool.planes * (piece + 1) / pieces - first;
        piece_pool.x = operands.get<float>(0) + first * pool.window.input_size();
        piece_pool.out = operands.get<float>(1) + first * pool.window.output_size();
        if (piece_pool.planes)
            pool_planes(piece_pool, wide ? 2 : 0);
    }

    void add_extents(Extents& extents) const override
    {
        const auto as_int64 = [](size_t value) { return static_cast<int64_t>(value); };
        extents.add_dense(0, 4, {as_int64(pool.planes), as_int64(pool.window.input_size())});
        extents.add_dense(1, 4, {as_int64(pool.planes), as_int64(pool.window.output_size())});
    }
};

} // namespace

// int_params: images, input and output channels of a group, groups, output channels of a piece,
// spans of a plane, has a bias, window, epilogue.
std::unique_ptr<Loop> conv_loop(const LoopParams& params)
{
    constexpr size_t window_at = 7;
    auto loop = std::make_unique<ConvLoop>();
    loop->conv.window = read_window(params, window_at);
    loop->program = read_fused_program(params, window_at + WINDOW_PARAMS, 0);
    loop->images = params.int_params[0];
    loop->conv.channels = params.int_params[1];
    loop->conv.out_channels = params.int_params[2];
    loop->conv.groups = params.int_params[3];
    loop->channels_per_piece = params.int_params[4];
    loop->spans = params.int_params[5];
    loop->has_bias = params.int_params[6] != 0;
    loop->wide = params.wide;
    check_window(loop->conv.window, loop->conv.window.out);
    require_sizes(loop->conv.window, {loop->images, loop->conv.channels, loop->conv.out_channels,
                                      loop->conv.groups, loop->channels_per_piece, loop->spans});
    require(loop->conv.channels > 0 && (loop->program.operands == 1 || loop->program.operands == 2),
            "expected channels, and a residual at most");
    const size_t broadcast = loop->conv.groups * loop->conv.out_channels;
    require(
        loop->channels_per_piece > 0 && broadcast > 0
            && (loop->conv.groups == 1 || loop->channels_per_piece % loop->conv.out_channels == 0)
            && params.pieces
                   == loop->images
                          * ((broadcast + loop->channels_per_piece - 1) / loop->channels_per_piece)
                          * loop->spans
            && params.slots == 2 + loop->has_bias + loop->program.operands,
        "expected pieces of whole groups, and a slot for each operand and the result");
    const Window& window = loop->conv.window;
    require(loop->spans == 1
                || (window.is_pointwise() && loop->conv.groups == 1 && loop->conv.out_channels > 1
                    && loop->channels_per_piece == loop->conv.out_channels
                    && window.input_size() >= loop->spans * ConvLoop::SPAN),
            "expected spans of 64 places at least, of all channels of 1 x 1 windows, two or more");
    return loop;
}

// int_params: images, input and output channels of a group, groups, output channels of a piece, has
// a bias, window.
std::unique_ptr<Loop> conv_transpose_loop(const LoopParams& params)
{
    constexpr size_t window_at = 6;
    auto loop = std::make_unique<TransposeLoop>();
    loop->window = read_window(params, window_at);
    loop->images = params.int_params[0];
    loop->channels = params.int_params[1];
    loop->out_channels = params.int_params[2];
    loop->groups = params.int_params[3];
    loop->channels_per_piece = params.int_params[4];
    loop->has_bias = params.int_params[5] != 0;
    loop->wide = params.wide;
    check_window(loop->window, loop->window.sizes);
    require_sizes(loop->window, {loop->images, loop->channels, loop->out_channels, loop->groups,
                                 loop->channels_per_piece});
    const size_t broadcast = loop->groups * loop->out_channels;
    require(
        params.int_params.size() == window_at + WINDOW_PARAMS && loop->channels_per_piece > 0
            && broadcast > 0 && loop->channels > 0
            && params.pieces
                   == loop->images
                          * ((broadcast + loop->channels_per_piece - 1) / loop->channels_per_piece)
            && params.slots == 3 + size_t{loop->has_bias},
        "expected pieces of channels, and a slot for each operand and the result");
    return loop;
}

// int_params: planes, whether it is a mean, window. float_params: the divisors of a mean for each
// axis.
std::unique_ptr<Loop> pool_loop(const LoopParams& params)
{
    auto loop = std::make_unique<PoolLoop>();
    Pool& pool = loop->pool;
    pool.window = read_window(params, 2);
    pool.planes = params.int_params[0];
    pool.kind = params.int_params[1] ? MEAN : MAX;
    loop->pieces = params.pieces;
    loop->wide = params.wide;
    check_window(pool.window, pool.window.out);
    require_sizes(pool.window, {pool.planes});
    const Sizes& out = pool.window.out;
    require(params.slots == 2
                && params.float_params.size() == (pool.kind == MEAN ? out[0] + out[1] + out[2] : 0),
            "expected counts of a mean, and two slots");
    auto count = params.float_params.begin();
    for (size_t axis = 0; pool.kind == MEAN && axis < AXES; count += out[axis++])
        pool.counts[axis].assign(count, count + out[axis]);
    return loop;
}

#else
std::unique_ptr<Loop> conv_loop(const LoopParams&) { throw KeyError("conv"); }
std::unique_ptr<Loop> pool_loop(const LoopParams&) { throw KeyError("pool"); }
std::unique_ptr<Loop> conv_transpose_loop(const LoopParams&) { throw KeyError("conv_transpose"); }
#endif
