// The loop `ssm_scan`: all time steps of a selective state space (vksched/ops/rnn/ssm_scan.py).
//
// Blocks of adjacent channels are computed together: their states stay in the cache for all time
// steps. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/elementwise/exponential.hpp"
#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

constexpr int64_t BLOCK = 32; // as in vksched/ops/rnn/ssm_scan_kernels.py

struct Scan {
    int64_t batch, time, heads, size, groups, states;
    bool per_head;
    const float *x, *dt, *a, *b, *c, *state;
    float* out;

    int64_t channels() const { return heads * size; }
};

// The channels first..first + width - 1 of a sequence. All are in one group.
struct Channels {
    int64_t sequence, first, width, group;
};

using ScanKernel = void (*)(const Scan&, const Channels&, float*);

// scratch: the states of the block and the rates, (states, BLOCK) each.
INLINED void scan_block(const Scan& scan, const Channels& block, float* scratch)
{
    const int64_t width = block.width, channels = scan.channels(), states = scan.states;
    float *state = scratch, *rate = scratch + states * BLOCK;
    float step[BLOCK] = {}, entering[BLOCK] = {}, decay[BLOCK] = {}, y[BLOCK];
    int64_t head[BLOCK] = {};
    std::fill_n(scratch, 2 * states * BLOCK, 0.0f);
    for (int64_t i = 0; i < width; ++i)
        head[i] = (block.first + i) / scan.size;
    const float* before = scan.state + block.sequence * states * channels + block.first;
    for (int64_t s = 0; s < states; ++s)
        for (int64_t i = 0; i < width; ++i) {
            state[s * BLOCK + i] = before[s * channels + i];
            rate[s * BLOCK + i] = scan.a[scan.per_head ? head[i] : head[i] * states + s];
        }
    float* out = scan.out + block.sequence * (scan.time + states) * channels + block.first;
    for (int64_t t = 0; t < scan.time; ++t) {
        const int64_t row = block.sequence * scan.time + t;
        const float* x = scan.x + row * channels + block.first;
        for (int64_t i = 0; i < width; ++i) {
            step[i] = scan.dt[row * scan.heads + head[i]];
            entering[i] = step[i] * x[i];
        }
        const int64_t at = (row * scan.groups + block.group) * states;
        for (int64_t i = 0; i < BLOCK; ++i) {
            decay[i] = exponential(step[i] * rate[i]);
            y[i] = 0;
        }
        for (int64_t s = 0; s < states; ++s) {
            const float b = scan.b[at + s], c = scan.c[at + s];
            float* own = state + s * BLOCK;
            if (!scan.per_head && s)
                for (int64_t i = 0; i < BLOCK; ++i)
                    decay[i] = exponential(step[i] * rate[s * BLOCK + i]);
            for (int64_t i = 0; i < BLOCK; ++i) {
                own[i] = decay[i] * own[i] + b * entering[i];
                y[i] += c * own[i];
            }
        }
        std::copy_n(y, width, out + t * channels);
    }
    for (int64_t s = 0; s < states; ++s)
        std::copy_n(state + s * BLOCK, width, out + (scan.time + s) * channels);
}

void scan_baseline(const Scan& scan, const Channels& block, float* scratch)
{
    scan_block(scan, block, scratch);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void scan_avx2(const Scan& scan, const Channels& block, float* scratch)
{
    scan_block(scan, block, scratch);
}
#else
constexpr ScanKernel scan_avx2 = scan_baseline;
#endif

// A piece is a range of blocks. Operands are contiguous.
struct SsmScanLoop : Loop {
    Scan scan;
    int64_t pieces;
    ScanKernel kernel;

    void run(const Operands& operands, size_t piece) const override
    {
        Scan own = scan;
        const float** inputs[] = {&own.x, &own.dt, &own.a, &own.b, &own.c, &own.state};
        for (size_t i = 0; i < 6; ++i)
            *inputs[i] = operands.get<float>(i);
        own.out = operands.get<float>(6);
        const int64_t width = own.channels() / own.groups; // channels of a group
        const int64_t each = (width + BLOCK - 1) / BLOCK, blocks = own.batch * own.groups * each;
        const int64_t index = piece, end = blocks * (index + 1) / pieces;
        std::vector<float> scratch(2 * own.states * BLOCK);
        for (int64_t block = blocks * index / pieces; block < end; ++block) {
            const int64_t first = block % each * BLOCK, group = block / each % own.groups;
            kernel(own,
                   {block / each / own.groups, group * width + first,
                    std::min(BLOCK, width - first), group},
                   scratch.data());
        }
    }

    void add_extents(Extents& extents) const override
    {
        const Scan& s = scan;
        require(s.batch > 0 && s.time > 0 && s.heads > 0 && s.size > 0 && s.groups > 0
                    && s.states > 0 && s.heads % s.groups == 0,
                "expected time steps, states, and groups that divide the heads");
        extents.add_dense(0, 4, {s.batch, s.time, s.heads, s.size});
        extents.add_dense(1, 4, {s.batch, s.time, s.heads});
        extents.add_dense(2, 4, {s.heads, s.per_head ? 1 : s.states});
        for (const size_t slot : {size_t{3}, size_t{4}})
            extents.add_dense(slot, 4, {s.batch, s.time, s.groups, s.states});
        extents.add_dense(5, 4, {s.batch, s.states, s.heads, s.size});
        require(s.time < int64_t{1} << 40 && s.states < int64_t{1} << 40,
                "expected fewer than 2^40 time steps and states");
        extents.add_dense(6, 4, {s.batch, s.time + s.states, s.heads, s.size});
    }
};

} // namespace

// int_params: batch, time steps, heads, size of a head, groups, states, rates of a head.
std::unique_ptr<Loop> ssm_scan_loop(const LoopParams& params)
{
    require(params.slots == 7 && params.int_params.size() == 7 && params.float_params.empty(),
            "expected 7 slots and 7 int_params");
    const auto& sizes = params.int_params;
    require(sizes[6] == 1 || sizes[6] == sizes[5], "expected a rate for each head or state");
    auto loop = std::make_unique<SsmScanLoop>();
    loop->scan = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6] == 1,
                  nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    loop->pieces = params.pieces;
    loop->kernel = params.wide && has_avx2() ? scan_avx2 : scan_baseline;
    return loop;
}
