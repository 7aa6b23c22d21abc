// Elementwise ops one after the other, in one pass over their operands: some values at a time, which
// stay in the first cache from step to step. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/elementwise/fused_program.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <array>

namespace {

constexpr int64_t AXES = 4, BLOCK = 256;

const std::map<std::string, Function> plain_steps{
    {"add", ADD}, {"sub", SUB}, {"mul", MUL}, {"div", DIV}, {"maximum", MAXIMUM},
    {"minimum", MINIMUM}, {"neg", NEG}, {"abs", ABS}, {"square", SQUARE}, {"sqrt", SQRT},
    {"rsqrt", RSQRT}, {"reciprocal", RECIPROCAL}, {"relu", RELU}, {"clip", CLIP},
    {"leaky_relu", LEAKY_RELU}, {"hard_sigmoid", HARD_SIGMOID}, {"hard_swish", HARD_SWISH},
    {"floor", FLOOR}, {"ceil", CEIL}, {"trunc", TRUNC}, {"round", ROUND},
    {"equal", EQUAL}, {"not_equal", NOT_EQUAL}, {"less", LESS}, {"less_equal", LESS_EQUAL},
    {"greater", GREATER}, {"greater_equal", GREATER_EQUAL}, {"where", WHERE},
    {"add_int32", ADD_INT}, {"int32_to_float32", OF_INT}, {"float32_to_int32", TO_INT},
};
const std::vector<std::string> called_steps{"erf", "gelu", "gelu_tanh", "gelu_slope",
                                            "gelu_tanh_slope", "log", "sigmoid", "silu", "tanh"};

// sizes: of the result, innermost first. strides: of each operand, of which the first are 0 or 1.
struct Chain {
    Steps steps;
    std::array<int64_t, AXES> sizes;
    std::vector<std::array<int64_t, AXES>> strides;
    size_t pieces;
};

INLINED void splat(float* to, float value, int64_t count)
{
    for (int64_t at = 0; at < count; ++at)
        to[at] = value;
}

// Registers of one thread, kept from call to call: where constants and results of steps lie, BLOCK
// values each.
struct Registers {
    std::vector<const float*> at;
    std::vector<float*> to;
    std::vector<float> values;

    void begin(const Steps& told)
    {
        const size_t all = told.operands + told.constants.size() + told.steps.size();
        if (values.size() < all * BLOCK)
            values.resize(all * BLOCK);
        at.resize(all);
        to.resize(all);
        for (size_t number = 0; number < all; ++number)
            at[number] = to[number] = values.data() + number * BLOCK;
        for (size_t number = 0; number < told.constants.size(); ++number)
            splat(to[told.operands + number], told.constants[number], BLOCK);
    }
};

thread_local Registers registers;

INLINED void chain_body(const Chain& told, const Operands& given, size_t piece)
{
    const Steps& steps = told.steps;
    const int64_t width = told.sizes[0], all = width * told.sizes[1] * told.sizes[2] * told.sizes[3];
    const int64_t pieces = told.pieces, number = piece, end = all * (number + 1) / pieces;
    const size_t first = steps.operands + steps.constants.size();
    registers.begin(steps);
    float* result = given.get<float>(steps.operands);
    for (int64_t begin = all * number / pieces; begin < end;) {
        int64_t line = begin / width;
        const int64_t column = begin % width, many = std::min(width - column, end - begin);
        std::array<int64_t, AXES> place{};
        for (int64_t axis = 1; axis < AXES; ++axis) {
            place[axis] = line % told.sizes[axis];
            line /= told.sizes[axis];
        }
        for (size_t operand = 0; operand < steps.operands; ++operand) {
            const auto& strides = told.strides[operand];
            const float* from = given.get<float>(operand) + column * strides[0];
            for (int64_t axis = 1; axis < AXES; ++axis)
                from += place[axis] * strides[axis];
            registers.at[operand] = from;
            if (strides[0] == 0) {
                splat(registers.to[operand], *from, std::min(many, BLOCK));
                registers.at[operand] = registers.to[operand];
            }
        }
        for (int64_t at = 0; at < many; at += BLOCK) {
            const int64_t count = std::min(BLOCK, many - at);
            registers.to.back() = result + begin + at;
            for (size_t step = 0; step < steps.steps.size(); ++step) {
                const ChainStep& own = steps.steps[step];
                take(own, registers.at[own.a], registers.at[own.b], registers.at[own.c],
                     registers.to[first + step], count);
            }
            for (size_t operand = 0; operand < steps.operands; ++operand)
                if (told.strides[operand][0])
                    registers.at[operand] += BLOCK;
        }
        begin += many;
    }
}

void chain(const Chain& told, const Operands& given, size_t piece)
{
    chain_body(told, given, piece);
}

#ifdef WIDE
WIDE void chain_wide(const Chain& told, const Operands& given, size_t piece)
{
    chain_body(told, given, piece);
}
#else
constexpr auto chain_wide = chain;
#endif

struct ChainLoop : Loop {
    ChainLoop(Chain told, bool wide) : told(std::move(told)), wide(wide && has_wide()) {}
    void run(const Operands& given, size_t piece) const override
    {
        wide ? chain_wide(told, given, piece) : chain(told, given, piece);
    }
    void reach(Extents& to) const override
    {
        const auto& sizes = told.sizes;
        for (size_t operand = 0; operand < told.strides.size(); ++operand) {
            const auto& steps = told.strides[operand];
            require(steps[0] == 0 || steps[0] == 1, "expected first strides of 0 or 1");
            to.add(operand, 4, {{sizes[0], steps[0]}, {sizes[1], steps[1]}, {sizes[2], steps[2]},
                                {sizes[3], steps[3]}});
        }
        to.all(told.strides.size(), 4, {sizes[0], sizes[1], sizes[2], sizes[3]});
    }
    Chain told;
    bool wide;
};

} // namespace

const std::vector<std::string>& step_names()
{
    static const std::vector<std::string> names = [] {
        std::vector<std::string> made = called_steps;
        for (const auto& [name, function] : plain_steps)
            made.push_back(name);
        std::sort(made.begin(), made.end());
        return made;
    }();
    return names;
}

ChainStep step_named(const std::string& name, bool wide)
{
    const auto found = plain_steps.find(name);
    if (found != plain_steps.end())
        return {found->second, 0, 0, 0, 0, 0, nullptr};
    if (std::find(called_steps.begin(), called_steps.end(), name) == called_steps.end())
        throw KeyError(name);
    return {CALLED, 0, 0, 0, 0, 0, value_loop(name, wide)};
}

Steps told_steps(const Told& told, size_t at, size_t real)
{
    const auto number = [&](size_t place) { return static_cast<size_t>(told.numbers.at(place)); };
    Steps made{number(at), {}, {}};
    const size_t constants = number(at + 1), steps = number(at + 2);
    require(made.operands < told.slots && constants <= told.reals.size()
                && steps <= told.numbers.size() && real <= told.reals.size(),
            "expected as many numbers and reals as the steps have");
    require(told.numbers.size() == at + 3 + 4 * steps
                && told.reals.size() == real + constants + 2 * steps,
            "expected as many numbers and reals as the steps have");
    made.constants.assign(told.reals.begin() + real, told.reals.begin() + real + constants);
    for (size_t step = 0; step < steps; ++step) {
        const size_t own = at + 3 + 4 * step, there = made.operands + constants + step;
        ChainStep one = step_named(step_names().at(number(own)), told.wide);
        one.a = number(own + 1);
        one.b = number(own + 2);
        one.c = number(own + 3);
        require(one.a < there && one.b < there && one.c < there, "expected registers that are there");
        one.p = told.reals[real + constants + 2 * step];
        one.q = told.reals[real + constants + 2 * step + 1];
        made.steps.push_back(one);
    }
    return made;
}

// numbers: operands, sizes, strides of each, steps.
std::unique_ptr<Loop> chain_loop(const Told& told)
{
    const size_t operands = told.numbers.at(0), steps = 1 + AXES * (1 + operands);
    require(operands < told.slots, "expected a slot for each operand and the result");
    Chain made{told_steps(told, steps, 0), {}, {}, told.pieces};
    require(made.steps.operands == operands && !made.steps.steps.empty()
                && told.slots == operands + 1,
            "expected steps, and a slot for each operand and the result");
    const auto four = [&](size_t at) {
        std::array<int64_t, AXES> taken{};
        std::copy_n(told.numbers.begin() + at, AXES, taken.begin());
        return taken;
    };
    made.sizes = four(1);
    for (size_t operand = 0; operand < operands; ++operand)
        made.strides.push_back(four(1 + AXES * (1 + operand)));
    return std::make_unique<ChainLoop>(std::move(made), told.wide);
}
