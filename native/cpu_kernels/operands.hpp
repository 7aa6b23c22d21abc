// Declarations that all CPU kernels share, without Python: a file that includes only this compiles
// in a third of the time. arrays.hpp has the operands that numpy passes.
//
//   module.cpp        binds all parts
//   norms.cpp         layer norm, RMS norm and their backward pass
//   resample.cpp      weighted sums of a few elements along an axis
//   gguf_strings.cpp  arrays of strings in GGUF files
//   extents.hpp       the memory that loops of programs access
//   param_loop.hpp    loops that are one function of their parameters
//   vectors.hpp       instruction sets that kernels are compiled for
//   conv/             convolution and pooling
//   elementwise/      unary functions and fused elementwise programs
//   int8/             int8 matmul and convolution, quantize and requantize
//   program/          native programs: many loops in one call, and loops that only they have
//   quantized/        matmul of quantized (GGUF) weights, and repacking of their blocks
//   rnn/              RNN, GRU and LSTM layers, and selective state spaces
//
// bindings.cpp of a folder has the functions that Python calls, apart from the kernels.
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

// module.cpp translates it to Python's KeyError. std::invalid_argument becomes a ValueError.
struct KeyError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class To, class From>
INLINED To bit_cast(From value)
{
    static_assert(sizeof(To) == sizeof(From), "expected types of one size");
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

inline void require(bool holds, const char* expected)
{
    if (!holds)
        throw std::invalid_argument(expected);
}

// Return the kernel of a unary function by its name. wide: use AVX2 if the processor has it.
using UnaryKernel = void (*)(const float*, float*, size_t);
UnaryKernel unary_kernel(const std::string& name, bool wide);

// The memory of a loop's operands, followed by its result.
struct Operands {
    char* const* memory;
    const uint32_t* slots;

    template <class T>
    T* get(size_t operand) const
    {
        return reinterpret_cast<T*>(memory[slots[operand]]);
    }
};

// The parameters of a loop. slots: number of operands and result. callee: name of the kernel
// variant that the loop calls, as the format of quantized weights.
struct LoopParams {
    const std::vector<int64_t>& int_params;
    const std::vector<float>& float_params;
    size_t slots, pieces;
    bool wide;
    const std::string& callee;
};

// A loop of a program. Several threads call `run`, each for other pieces.
struct Loop {
    virtual ~Loop() = default;
    virtual void run(const Operands& operands, size_t piece) const = 0;
    // Add the extents of all pieces in each slot. Throw if a parameter is invalid.
    virtual void add_extents(Extents& extents) const = 0;
};

// Return a loop by its name. Throw KeyError if there is none.
std::unique_ptr<Loop> make_loop(const std::string& name, const LoopParams& params);

std::unique_ptr<Loop> attention_loop(const LoopParams& params);
std::unique_ptr<Loop> attention_with_kvcache_loop(const LoopParams& params);
std::unique_ptr<Loop> fused_elementwise_loop(const LoopParams& params);
std::unique_ptr<Loop> concat_loop(const LoopParams& params);
std::unique_ptr<Loop> conv_loop(const LoopParams& params);
std::unique_ptr<Loop> copy_loop(const LoopParams& params);
std::unique_ptr<Loop> gather_loop(const LoopParams& params);
std::unique_ptr<Loop> quantized_linear_loop(const LoopParams& params);
std::unique_ptr<Loop> quantized_linear_q8_loop(const LoopParams& params);
std::unique_ptr<Loop> matmul_loop(const LoopParams& params);
std::unique_ptr<Loop> norm_loop(const LoopParams& params);
std::unique_ptr<Loop> pool_loop(const LoopParams& params);
std::unique_ptr<Loop> gemm_loop(const LoopParams& params);
std::unique_ptr<Loop> rnn_scan_loop(const LoopParams& params);
std::unique_ptr<Loop> reduce_loop(const LoopParams& params);
std::unique_ptr<Loop> rotary_loop(const LoopParams& params);
std::unique_ptr<Loop> quantize_rows_q8_loop(const LoopParams& params);
std::unique_ptr<Loop> softmax_loop(const LoopParams& params);
std::unique_ptr<Loop> ssm_scan_loop(const LoopParams& params);
std::unique_ptr<Loop> conv_transpose_loop(const LoopParams& params);
std::unique_ptr<Loop> dynamic_update_slice_loop(const LoopParams& params);
