// Elementwise kernels make four words of the result at a time: a vec4. Every tensor starts at a multiple of four words, so
// its buffer is an array of WORDS, or of uvec4. Neighbouring invocations take neighbouring vec4s, and a group a run of them.
#include "load_words.glsl"

// Steps that a group goes along the innermost axis: a multiple of its size, so that all groups together cover `width`.
uint run_of_group(uint width) {
    const uint each = (width + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
    return (each + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x * gl_WorkGroupSize.x;
}
uint first_of_run(uint run) { return gl_WorkGroupID.x * run + gl_LocalInvocationID.x; }
uint end_of_run(uint width, uint run) { return min(gl_WorkGroupID.x * run + run, width); }

// The other axes together are lines, along y; a group takes a run of them, too, as pages that lie apart cost time.
uint lines_of_group(uint lines) {
    const uint each = (lines + gl_NumWorkGroups.y - 1u) / gl_NumWorkGroups.y;
    return (each + gl_WorkGroupSize.y - 1u) / gl_WorkGroupSize.y * gl_WorkGroupSize.y;
}
uint first_line(uint run) { return gl_WorkGroupID.y * run + gl_LocalInvocationID.y; }
uint end_of_lines(uint lines, uint run) { return min(gl_WorkGroupID.y * run + run, lines); }
#define FOR_EACH_LINE(line, lines) \
    const uint lines_run = lines_of_group(lines); \
    const uint lines_end = end_of_lines(lines, lines_run); \
    for (uint line = first_line(lines_run); line < lines_end; line += gl_WorkGroupSize.y)
