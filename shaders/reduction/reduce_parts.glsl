// Shared by the kernels that reduce vec4s: their bindings and push block, where a row is, and where its part or result goes.
layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
SINGLE_WORDS(0, readonly, x)
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint parts;
    uint chunk;
    uint writes_states;
    uint option;
    float divisor;
    uint outer_sizes[3];
    uint outer_strides[4];
    uint stride;
};

uint outer_word(uint index) {
    uint at = 0u;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = index / outer_sizes[axis];
        at += (index - next * outer_sizes[axis]) * outer_strides[axis];
        index = next;
    }
    return at + index * outer_strides[3];
}

void store(ROW_TYPE state, uint row, uint part) {
    if (writes_states != 0u) {
        const uvec4 words = to_words(state);
        for (uint word = 0u; word < STATE_WORDS; ++word) {
            result[result_offset + (word * parts + part) * rows + row] = words[word];
        }
    } else {
        result[result_offset + row] = finish(state, divisor, option);
    }
}
