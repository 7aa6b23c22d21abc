// The parameters of a recurrent layer.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS
namespace rnn {

constexpr size_t BLOCK = 4; // maximum number of sequences computed together
// Packing the weights pays if they are read at least this often.
constexpr size_t MIN_READS = 4, MIN_READS_TRANSPOSED = 16;

enum class Activation { sigmoid, tanh, relu };

// Strides are in floats. own: peephole weights of an LSTM, or the last bias of a GRU.
struct Layer {
    size_t gates, directions, time, batch, hidden;
    const float *inputs, *r, *own;
    size_t inputs_direction, inputs_time, inputs_sequence, r_direction, r_row, r_column,
        own_direction;
    float* out;
    size_t out_time, out_direction, out_sequence;
    const int64_t* lengths;
    std::vector<bool> reverse;
    std::vector<std::vector<Activation>> activations;
    float clip;
    bool coupled, linear;

    const float* gate_inputs(size_t direction, size_t at, size_t sequence) const
    {
        return inputs + direction * inputs_direction + at * inputs_time
               + sequence * inputs_sequence;
    }
    float* result(size_t row, size_t direction, size_t sequence) const
    {
        return out + row * out_time + direction * out_direction + sequence * out_sequence;
    }
    bool is_active(size_t at, size_t sequence) const
    {
        return !lengths || static_cast<int64_t>(at) < lengths[sequence];
    }
    size_t scratch_floats() const { return BLOCK * (gates + 1) * hidden; }
    // Return the size of the packed weights, or 0 if they are read in place: if they are read
    // rarely, and are contiguous by rows or by columns.
    size_t packed_floats() const
    {
        const size_t reads = time * ((batch + BLOCK - 1) / BLOCK);
        const bool in_place =
            r_column == 1 ? reads < MIN_READS : r_row == 1 && reads < MIN_READS_TRANSPOSED;
        return in_place ? 0 : gates * hidden * hidden;
    }
};

// Copy the initial states, start (states, directions, batch, hidden), to their rows of the result,
// and run all time steps.
void scan(const Layer& layer, const float* start, size_t state_stride, size_t direction_stride,
                size_t sequence_stride, bool wide);

} // namespace rnn
#endif
