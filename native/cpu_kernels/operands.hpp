// What the files of the CPU backend's loops share, without Python: whoever reads it, compiles in a
// third of the time. arrays.hpp has operands as numpy hands them over.
//
//   module.cpp        binds all
//   norms.cpp         norms of rows
//   resample.cpp      weighted sums of a few elements along an axis
//   gguf_strings.cpp  strings of files
//   extents.hpp       how far loops of programs reach
//   param_loop.hpp    loops of programs that are one function
//   conv/             convolutions and pools
//   elementwise/      functions of one value, and chains of elementwise steps
//   int8/             products of codes of 8 bits, and such codes
//   program/          many loops in one call, and those that programs alone have
//   quantized/        products of weights of few bits, and such weights from the blocks of files
//   rnn/              recurrent layers
//
// A bindings.cpp in one of these is what Python calls, apart from the loops.
#pragma once

#include "cpu_kernels/extents.hpp"
#include "platform.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// Becomes the KeyError of Python, by module.cpp; std::invalid_argument is a ValueError.
struct KeyError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class To, class From>
INLINED To bits_as(From value)
{
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To made;
    std::memcpy(&made, &value, sizeof made);
    return made;
}

inline void require(bool holds, const char* expected)
{
    if (!holds)
        throw std::invalid_argument(expected);
}

// A loop of one value at a time by its name, for the processor at hand or, not wide, for all.
using ValueLoop = void (*)(const float*, float*, size_t);
ValueLoop value_loop(const std::string& name, bool wide);

// Where the operands of a loop of a program lie, and behind them its result.
struct Operands {
    char* const* at;
    const uint32_t* slots;

    template <class T>
    T* get(size_t operand) const
    {
        return reinterpret_cast<T*>(at[slots[operand]]);
    }
};

// A loop as it is told: how many slots it has, its result's too, and which loop of others it calls.
struct Told {
    const std::vector<int64_t>& numbers;
    const std::vector<float>& reals;
    size_t slots, pieces;
    bool wide;
    const std::string& calls;
};

// A loop of a program that was made ready; run is called by several threads.
struct Loop {
    virtual ~Loop() = default;
    virtual void run(const Operands& given, size_t piece) const = 0;
    // Tells how far all pieces reach in each slot; throws where a number makes no sense.
    virtual void reach(Extents& to) const = 0;
};

// A loop by its name; throws KeyError where there is no such loop.
std::unique_ptr<Loop> loop_named(const std::string& name, const Told& told);

std::unique_ptr<Loop> attention_loop(const Told& told);
std::unique_ptr<Loop> cached_attention_loop(const Told& told);
std::unique_ptr<Loop> chain_loop(const Told& told);
std::unique_ptr<Loop> concat_loop(const Told& told);
std::unique_ptr<Loop> conv_loop(const Told& told);
std::unique_ptr<Loop> copy_loop(const Told& told);
std::unique_ptr<Loop> gather_loop(const Told& told);
std::unique_ptr<Loop> linear_packed_loop(const Told& told);
std::unique_ptr<Loop> linear_rounded_loop(const Told& told);
std::unique_ptr<Loop> matmul_loop(const Told& told);
std::unique_ptr<Loop> norm_loop(const Told& told);
std::unique_ptr<Loop> pool_loop(const Told& told);
std::unique_ptr<Loop> product_loop(const Told& told);
std::unique_ptr<Loop> recurrent_loop(const Told& told);
std::unique_ptr<Loop> reduce_loop(const Told& told);
std::unique_ptr<Loop> rotary_loop(const Told& told);
std::unique_ptr<Loop> round_rows_loop(const Told& told);
std::unique_ptr<Loop> softmax_loop(const Told& told);
std::unique_ptr<Loop> transpose_loop(const Told& told);
std::unique_ptr<Loop> write_rows_loop(const Told& told);
