// The slice that a tuple of DEPTH indices names, for kernels that bind Indices and push the sizes of the axes it indexes.
#include "checked_index.glsl"

uint checked_tuple(uint first) {
    uint slice = 0u;
    for (uint axis = 0u; axis < DEPTH; ++axis) {
        const uint index = checked_index(indices[first + axis], sizes[axis]);
        if (index == OUT_OF_RANGE) return OUT_OF_RANGE;
        slice = slice * sizes[axis] + index;
    }
    return slice;
}
