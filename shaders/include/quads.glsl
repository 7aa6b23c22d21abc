// Elementwise kernels make four words of the result at a time: a quad. Every tensor starts at a multiple of four words, so
// its buffer is an array of uvec4. Neighbouring invocations take neighbouring quads, and a group a run of them.
#define WORD(BUFFER, at) BUFFER[(at) >> 2u][(at) & 3u]

// Steps that a group goes along the innermost axis: a multiple of its size, so that all groups together cover `width`.
uint run_of_group(uint width) {
    const uint each = (width + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
    return (each + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x * gl_WorkGroupSize.x;
}
uint first_of_run(uint run) { return gl_WorkGroupID.x * run + gl_LocalInvocationID.x; }
uint end_of_run(uint width, uint run) { return min(gl_WorkGroupID.x * run + run, width); }

// The other axes together are rows, along y.
uint first_line() { return gl_GlobalInvocationID.y; }
uint line_step() { return gl_NumWorkGroups.y * gl_WorkGroupSize.y; }
