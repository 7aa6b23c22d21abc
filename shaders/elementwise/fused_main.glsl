// Shared by the fused_N shaders: one iteration of the loop for four values, or for one. OPERANDS(X) is X(i, x, its offset, its
// strides) for each operand, VALUES their values' names, and FUSED_INPUTS the same filled up to six.
#include "fused.glsl"

// Always 0, as no buffer has so many words, which no compiler knows: constants are combined with it in fused(), as Mesa takes
// x * 0 for 0 and x + 0 for x, which NaN, infinities and -0 are not.
uvec4 nothing;

// The word of an operand at an index of the result: `along` the innermost axis and at `outer` of the others. Without a branch:
// around a load, even one over a specialisation constant costs SwiftShader many times the load. Axes that are not there have
// stride 0.
#define AT(i, offset, strides) \
    offset + along * (VARIES >> i & 1u) + outer.x * strides[0] + outer.y * strides[1] + outer.z * strides[2]

// The index of an element, by axes beyond the innermost one; `along` is left.
uvec3 outer_of(inout uint along) {
    uvec3 outer = uvec3(0u);
    if (RANK > 1u) {
        outer.x = along / sizes[0];
        along -= outer.x * sizes[0];
    }
    if (RANK > 2u) {
        outer.y = outer.x / sizes[1];
        outer.x -= outer.y * sizes[1];
    }
    if (RANK > 3u) {
        outer.z = outer.y / sizes[2];
        outer.y -= outer.z * sizes[2];
    }
    return outer;
}

#if VEC4
// Four values behind each other: a vec4 of what goes on along the innermost axis, one value of what does not.
// That one is a load of its own on llvmpipe, which leaves out what is not used; SwiftShader would do both loads.
#ifdef WORDS_64
#define ONE(name, at, four) WORD(name, at)
#else
uint one_of(uvec4 four, uint at) {
    const bool high = (at & 2u) != 0u;
    return mix(mix(four.x, four.z, high), mix(four.y, four.w, high), (at & 1u) != 0u);
}
#define ONE(name, at, four) one_of(four, at)
#endif
#define LOAD(i, name, offset, strides) \
    { \
        const uint at = AT(i, offset, strides); \
        const uvec4 four = words(name[at >> 2]); \
        const uint one = ONE(name, at, four); \
        v##name = mix(uvec4(one), four, bvec4((VARIES >> i & 1u) != 0u)); \
    }

void main() {
    nothing = uvec4(result_offset >> 31);
    const uint vec4_count = (count + 3u) / 4u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    for (uint vec4_index = first_of_run(run); vec4_index < end; vec4_index += gl_WorkGroupSize.x) {
        const uint i = 4u * vec4_index;
        uint along = i;
        const uvec3 outer = outer_of(along);
        uvec4 VALUES;
        OPERANDS(LOAD)
        const uvec4 done = fused(FUSED_INPUTS);
        const uint to = result_offset + i >> 2;
        const uint left = count - i;
        if (left >= 4u) {
            result[to] = stored(done);
        } else {
            WORD_OF(result, to, 0u) = done.x;
            if (left > 1u) WORD_OF(result, to, 1u) = done.y;
            if (left > 2u) WORD_OF(result, to, 2u) = done.z;
        }
    }
}
#else
// One value, where rows are no whole vec4s; what the other three would be is never computed.
#define LOAD(i, name, offset, strides) v##name = uvec4(name[AT(i, offset, strides)], 0u, 0u, 0u);

void main() {
    nothing = uvec4(result_offset >> 31);
    const uint run = run_of_group(count);
    const uint end = end_of_run(count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        uint along = i;
        const uvec3 outer = outer_of(along);
        uvec4 VALUES;
        OPERANDS(LOAD)
        result[result_offset + i] = fused(FUSED_INPUTS).x;
    }
}
#endif
