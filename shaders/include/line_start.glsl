// start_of_line(line): the words of operands where a line of the innermost axis starts. The other RANK - 1 axes are given
// innermost first: sizes (the last one is not needed) and strides. The shader defines PLACES (uint, or a vector with an
// entry for each operand), START (the offsets) and STRIDES(axis), axis 0 being the innermost.
// There are few `if`s here: SwiftShader goes through both sides, even of one over a specialisation constant.
PLACES start_of_line(uint line) {
    PLACES at = START;
    for (uint axis = 1u; axis + 1u < RANK; ++axis) {
        const uint next = line / sizes[axis - 1u];
        at += (line - next * sizes[axis - 1u]) * STRIDES(axis);
        line = next;
    }
    return at + line * STRIDES(RANK - 1u);
}

// An operand is read from a line by OPEN, then LOAD_VEC4(name, buffer, along, i): four words from the line's start, or, where it
// does not go on along the innermost axis (along 0), the first one four times.
#define OPEN(NAME, BUFFER, at) \
    const uint NAME##_at = (at) / 4u; \
    const uvec4 NAME##_alike = uvec4(WORD(BUFFER, at));
#define LOAD_VEC4(NAME, BUFFER, ALONG, i) mix(NAME##_alike, words(BUFFER[NAME##_at + (i) * ALONG]), bvec4(ALONG != 0u))
