// Fused elementwise ops: one pass over the operands, in blocks whose intermediate results stay in
// the L1 cache. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/elementwise/fused_program.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <array>

namespace {

constexpr int64_t AXES = 4, BLOCK = 256;

const std::map<std::string, Opcode> inline_ops{
    {"add", ADD}, {"sub", SUB}, {"mul", MUL}, {"div", DIV}, {"maximum", MAXIMUM},
    {"minimum", MINIMUM}, {"neg", NEG}, {"abs", ABS}, {"square", SQUARE}, {"sqrt", SQRT},
    {"rsqrt", RSQRT}, {"reciprocal", RECIPROCAL}, {"relu", RELU}, {"clip", CLIP},
    {"leaky_relu", LEAKY_RELU}, {"hard_sigmoid", HARD_SIGMOID}, {"hard_swish", HARD_SWISH},
    {"floor", FLOOR}, {"ceil", CEIL}, {"trunc", TRUNC}, {"round", ROUND},
    {"equal", EQUAL}, {"not_equal", NOT_EQUAL}, {"less", LESS}, {"less_equal", LESS_EQUAL},
    {"greater", GREATER}, {"greater_equal", GREATER_EQUAL}, {"where", WHERE},
    {"add_int32", ADD_INT32}, {"int32_to_float32", FROM_INT32}, {"float32_to_int32", TO_INT32},
};
const std::vector<std::string> called_ops{"erf", "gelu", "gelu_tanh", "gelu_slope",
                                            "gelu_tanh_slope", "log", "sigmoid", "silu", "tanh"};

// sizes: of the result, innermost first. strides: of each operand; the innermost is 0 or 1.
struct FusedElementwise {
    FusedProgram program;
    std::array<int64_t, AXES> sizes;
    std::vector<std::array<int64_t, AXES>> strides;
    size_t pieces;
};

INLINED void fill(float* to, float value, int64_t count)
{
    for (int64_t at = 0; at < count; ++at)
        to[at] = value;
}

// The registers of a thread, reused from call to call: BLOCK values for each constant and result.
struct Registers {
    std::vector<const float*> at;
    std::vector<float*> to;
    std::vector<float> values;

    void begin(const FusedProgram& program)
    {
        const size_t all = program.operands + program.constants.size() + program.instrs.size();
        if (values.size() < all * BLOCK)
            values.resize(all * BLOCK);
        at.resize(all);
        to.resize(all);
        for (size_t number = 0; number < all; ++number)
            at[number] = to[number] = values.data() + number * BLOCK;
        for (size_t number = 0; number < program.constants.size(); ++number)
            fill(to[program.operands + number], program.constants[number], BLOCK);
    }
};

thread_local Registers registers;

INLINED void run_fused_body(const FusedElementwise& fused, const Operands& operands, size_t piece)
{
    const FusedProgram& program = fused.program;
    const int64_t width = fused.sizes[0],
                  all = width * fused.sizes[1] * fused.sizes[2] * fused.sizes[3];
    const int64_t pieces = fused.pieces, own_piece = piece, end = all * (own_piece + 1) / pieces;
    const size_t first = program.operands + program.constants.size();
    registers.begin(program);
    float* result = operands.get<float>(program.operands);
    for (int64_t begin = all * own_piece / pieces; begin < end;) {
        int64_t line = begin / width;
        const int64_t column = begin % width, run_length = std::min(width - column, end - begin);
        std::array<int64_t, AXES> index{};
        for (int64_t axis = 1; axis < AXES; ++axis) {
            index[axis] = line % fused.sizes[axis];
            line /= fused.sizes[axis];
        }
        for (size_t operand = 0; operand < program.operands; ++operand) {
            const auto& strides = fused.strides[operand];
            const float* from = operands.get<float>(operand) + column * strides[0];
            for (int64_t axis = 1; axis < AXES; ++axis)
                from += index[axis] * strides[axis];
            registers.at[operand] = from;
            if (strides[0] == 0) {
                fill(registers.to[operand], *from, std::min(run_length, BLOCK));
                registers.at[operand] = registers.to[operand];
            }
        }
        for (int64_t at = 0; at < run_length; at += BLOCK) {
            const int64_t count = std::min(BLOCK, run_length - at);
            registers.to.back() = result + begin + at;
            for (size_t index = 0; index < program.instrs.size(); ++index) {
                const Instr& instr = program.instrs[index];
                execute(instr, registers.at[instr.a], registers.at[instr.b], registers.at[instr.c],
                     registers.to[first + index], count);
            }
            for (size_t operand = 0; operand < program.operands; ++operand)
                if (fused.strides[operand][0])
                    registers.at[operand] += BLOCK;
        }
        begin += run_length;
    }
}

void run_fused(const FusedElementwise& fused, const Operands& operands, size_t piece)
{
    run_fused_body(fused, operands, piece);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void run_fused_avx2(const FusedElementwise& fused, const Operands& operands,
                                size_t piece)
{
    run_fused_body(fused, operands, piece);
}
#else
constexpr auto run_fused_avx2 = run_fused;
#endif

struct FusedElementwiseLoop : Loop {
    FusedElementwiseLoop(FusedElementwise fused, bool wide)
      : fused(std::move(fused)), wide(wide && has_avx2())
    {
    }
    void run(const Operands& operands, size_t piece) const override
    {
        wide ? run_fused_avx2(fused, operands, piece) : run_fused(fused, operands, piece);
    }
    void add_extents(Extents& extents) const override
    {
        const auto& sizes = fused.sizes;
        for (size_t operand = 0; operand < fused.strides.size(); ++operand) {
            const auto& strides = fused.strides[operand];
            require(strides[0] == 0 || strides[0] == 1, "expected innermost strides of 0 or 1");
            extents.add(operand, 4,
                        {{sizes[0], strides[0]},
                         {sizes[1], strides[1]},
                         {sizes[2], strides[2]},
                         {sizes[3], strides[3]}});
        }
        extents.add_dense(fused.strides.size(), 4, {sizes[0], sizes[1], sizes[2], sizes[3]});
    }
    FusedElementwise fused;
    bool wide;
};

} // namespace

const std::vector<std::string>& instr_names()
{
    static const std::vector<std::string> names = [] {
        std::vector<std::string> names = called_ops;
        for (const auto& [name, opcode] : inline_ops)
            names.push_back(name);
        std::sort(names.begin(), names.end());
        return names;
    }();
    return names;
}

Instr instr_named(const std::string& name, bool wide)
{
    const auto entry = inline_ops.find(name);
    if (entry != inline_ops.end())
        return {entry->second, 0, 0, 0, 0, 0, nullptr};
    if (std::find(called_ops.begin(), called_ops.end(), name) == called_ops.end())
        throw KeyError(name);
    return {CALL, 0, 0, 0, 0, 0, unary_kernel(name, wide)};
}

FusedProgram read_fused_program(const LoopParams& params, size_t at, size_t float_at)
{
    const auto param = [&](size_t index) {
        return static_cast<size_t>(params.int_params.at(index));
    };
    FusedProgram program{param(at), {}, {}};
    const size_t constants = param(at + 1), instrs = param(at + 2);
    require(program.operands < params.slots && constants <= params.float_params.size()
                && instrs <= params.int_params.size() && float_at <= params.float_params.size(),
            "expected as many int_params and float_params as the program has");
    require(params.int_params.size() == at + 3 + 4 * instrs
                && params.float_params.size() == float_at + constants + 2 * instrs,
            "expected as many int_params and float_params as the program has");
    program.constants.assign(params.float_params.begin() + float_at,
                             params.float_params.begin() + float_at + constants);
    for (size_t instr_index = 0; instr_index < instrs; ++instr_index) {
        const size_t base = at + 3 + 4 * instr_index,
                     register_count = program.operands + constants + instr_index;
        Instr instr = instr_named(instr_names().at(param(base)), params.wide);
        instr.a = param(base + 1);
        instr.b = param(base + 2);
        instr.c = param(base + 3);
        require(instr.a < register_count && instr.b < register_count && instr.c < register_count,
                "expected registers in range");
        instr.p = params.float_params[float_at + constants + 2 * instr_index];
        instr.q = params.float_params[float_at + constants + 2 * instr_index + 1];
        program.instrs.push_back(instr);
    }
    return program;
}

// int_params: number of operands, sizes, strides of each operand, program.
std::unique_ptr<Loop> fused_elementwise_loop(const LoopParams& params)
{
    const size_t operands = params.int_params.at(0), program_at = 1 + AXES * (1 + operands);
    require(operands < params.slots, "expected a slot for each operand and the result");
    FusedElementwise fused{read_fused_program(params, program_at, 0), {}, {}, params.pieces};
    require(fused.program.operands == operands && !fused.program.instrs.empty()
                && params.slots == operands + 1,
            "expected instructions, and a slot for each operand and the result");
    const auto read_axes = [&](size_t at) {
        std::array<int64_t, AXES> values{};
        std::copy_n(params.int_params.begin() + at, AXES, values.begin());
        return values;
    };
    fused.sizes = read_axes(1);
    for (size_t operand = 0; operand < operands; ++operand)
        fused.strides.push_back(read_axes(1 + AXES * (1 + operand)));
    return std::make_unique<FusedElementwiseLoop>(std::move(fused), params.wide);
}
