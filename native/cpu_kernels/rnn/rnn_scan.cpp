// All time steps of an RNN, GRU or LSTM layer, whose inputs were multiplied with their weights
// before, and the loop of native programs that runs them. bindings.cpp has the functions that
// Python calls.
//
// Up to four sequences are computed together: a weight is read once for all. Without the vector
// extensions of GCC or Clang numpy computes the layer. Examples:
// tests/ops/native/test_recurrent_loops.py.
#include "cpu_kernels/rnn/rnn_scan.hpp"

#include "cpu_kernels/elementwise/exponential.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS
namespace rnn {
namespace {

struct Sigmoid {
    INLINED float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};

struct Relu {
    INLINED float of(float x) { return x < 0 ? 0.0f : x; }
};

namespace baseline {
#include "cpu_kernels/rnn/rnn_scan_simd.hpp"
}

#ifdef MULTIVERSION
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#include "cpu_kernels/rnn/rnn_scan_simd.hpp"
}
#pragma GCC pop_options
#else
namespace avx2 = baseline;
#endif

} // namespace

void scan(const Layer& layer, const float* start, size_t state_stride, size_t direction_stride,
                size_t sequence_stride, bool wide)
{
    const size_t states = layer.gates == 4 ? 2 : 1;
    for (size_t i = 0; i < states; ++i)
        for (size_t d = 0; d < layer.directions; ++d)
            for (size_t b = 0; b < layer.batch; ++b)
                std::memcpy(layer.result(layer.time + i, d, b),
                            start + i * state_stride + d * direction_stride + b * sequence_stride,
                            layer.hidden * sizeof(float));
    const std::unique_ptr<float[]> scratch(
        new float[layer.scratch_floats() + layer.packed_floats()]);
    float* packed = layer.packed_floats() ? scratch.get() + layer.scratch_floats() : nullptr;
    if (wide && has_avx2_f16c())
        avx2::run_layer(layer, scratch.get(), packed);
    else
        baseline::run_layer(layer, scratch.get(), packed);
}

namespace {

// -- a loop of native programs -------------------------------------------------------------------

// A piece is a direction. Operands are contiguous.
struct RnnScanLoop : Loop {
    std::vector<Layer> directions; // one layer for each direction
    bool has_own, wide;

    void run(const Operands& operands, size_t piece) const override
    {
        Layer layer = directions[piece];
        const size_t columns = layer.gates * layer.hidden;
        const size_t sequences = layer.batch * layer.hidden;
        layer.inputs = operands.get<float>(0) + piece * layer.inputs_direction;
        layer.r = operands.get<float>(1) + piece * layer.r_direction;
        layer.own = has_own ? operands.get<float>(3) + piece * columns : nullptr;
        layer.out = operands.get<float>(3 + has_own) + piece * sequences;
        scan(layer, operands.get<float>(2) + piece * sequences, directions.size() * sequences, 0,
                   layer.hidden, wide);
    }

    void add_extents(Extents& extents) const override
    {
        const Layer& layer = directions.at(0);
        const int64_t count = directions.size(), gates = layer.gates, time = layer.time;
        const int64_t batch = layer.batch, hidden = layer.hidden, states = gates == 4 ? 2 : 1;
        extents.add_dense(0, 4, {count, time, batch, gates, hidden});
        extents.add_dense(1, 4, {count, hidden, gates, hidden});
        extents.add_dense(2, 4, {states, count, batch, hidden});
        if (has_own)
            extents.add_dense(3, 4, {count, gates, hidden});
        require(time < int64_t{1} << 40 && batch > 0 && hidden > 0,
                "expected fewer than 2^40 time steps, and states");
        extents.add_dense(3 + has_own, 4, {time + states, count, batch, hidden});
    }
};

} // namespace
} // namespace rnn

// int_params: gates, time steps, batch, hidden, coupled, linear, has `own`, and for each direction
// whether it is reversed and its activations (0 sigmoid, 1 tanh, 2 relu). float_params: clip.
std::unique_ptr<Loop> rnn_scan_loop(const LoopParams& params)
{
    using namespace rnn;
    const auto number = [&](size_t at) { return static_cast<size_t>(params.int_params.at(at)); };
    Layer layer{};
    layer.gates = number(0);
    require(layer.gates == 1 || layer.gates == 3 || layer.gates == 4, "expected 1, 3 or 4 gates");
    const size_t activation_count = layer.gates == 1   ? 1
                                    : layer.gates == 3 ? 2
                                                       : 3,
                 count = params.pieces;
    auto loop = std::make_unique<RnnScanLoop>();
    loop->has_own = number(6) != 0;
    loop->wide = params.wide;
    require(params.int_params.size() == 7 + count * (1 + activation_count)
                && params.float_params.size() == 1 && params.slots == 4 + size_t{loop->has_own},
            "expected a piece for each direction, and a slot for each operand and the result");
    layer.directions = 1;
    layer.time = number(1);
    layer.batch = number(2);
    layer.hidden = number(3);
    layer.coupled = number(4) != 0;
    layer.linear = number(5) != 0;
    layer.clip = params.float_params[0];
    const size_t columns = layer.gates * layer.hidden;
    layer.inputs_sequence = columns;
    layer.inputs_time = layer.batch * columns;
    layer.inputs_direction = layer.time * layer.inputs_time;
    layer.r_column = 1;
    layer.r_row = columns;
    layer.r_direction = layer.hidden * columns;
    layer.own_direction = columns;
    layer.out_sequence = layer.hidden;
    layer.out_direction = layer.batch * layer.hidden;
    layer.out_time = count * layer.out_direction;
    for (size_t at = 7; at < params.int_params.size(); at += 1 + activation_count) {
        Layer direction = layer;
        direction.reverse = {number(at) != 0};
        direction.activations.emplace_back();
        for (size_t function = 0; function < activation_count; ++function) {
            require(number(at + 1 + function) < 3, "expected activations in range");
            direction.activations[0].push_back(static_cast<Activation>(number(at + 1 + function)));
        }
        loop->directions.push_back(std::move(direction));
    }
    return loop;
}
#else
std::unique_ptr<Loop> rnn_scan_loop(const LoopParams&) { throw KeyError("rnn_scan"); }
#endif
