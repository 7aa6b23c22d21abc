// A recurrent layer as its loops are told of it.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <vector>

#ifdef HAS_VECTORS
namespace recurrent {

constexpr size_t BLOCK = 4; // sequences side by side, at most
// So often the weights are read before it pays to bring them together.
constexpr size_t OFTEN = 4, TURNED_OFTEN = 16;

enum class Function { sigmoid, tanh, relu };

// Distances count floats.
struct Layer {
    size_t gates, directions, time, batch, hidden;
    const float *from, *r, *own;
    size_t from_direction, from_time, from_sequence, r_direction, r_row, r_column, own_direction;
    float* out;
    size_t out_time, out_direction, out_sequence;
    const int64_t* lengths;
    std::vector<bool> backwards;
    std::vector<std::vector<Function>> functions;
    float clip;
    bool coupled, linear;

    const float* given(size_t direction, size_t at, size_t sequence) const
    {
        return from + direction * from_direction + at * from_time + sequence * from_sequence;
    }
    float* result(size_t row, size_t direction, size_t sequence) const
    {
        return out + row * out_time + direction * out_direction + sequence * out_sequence;
    }
    bool is_alive(size_t at, size_t sequence) const
    {
        return !lengths || static_cast<int64_t>(at) < lengths[sequence];
    }
    size_t room() const { return BLOCK * (gates + 1) * hidden; }
    // Of weights brought together, where they are read often enough or lie neither by rows nor by
    // columns.
    size_t packed() const
    {
        const size_t reads = time * ((batch + BLOCK - 1) / BLOCK);
        const bool as_they_lie = r_column == 1 ? reads < OFTEN : r_row == 1 && reads < TURNED_OFTEN;
        return as_they_lie ? 0 : gates * hidden * hidden;
    }
};

// Writes the states before the first turn, start (states, directions, batch, hidden), in their rows;
// then takes all turns.
void take_turns(const Layer& told, const float* start, size_t of_state, size_t of_direction,
                size_t of_sequence, bool wide);

} // namespace recurrent
#endif
