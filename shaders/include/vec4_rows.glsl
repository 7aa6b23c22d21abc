// Kernels over rows that are read more than once. A row has `columns` values `stride` words apart, read as vec4s and a few
// single words (edges):
//   stride 1     vec4s along the row, edges before the first and behind the last multiple of four
//   ACROSS 1     stride is a multiple of four: a vec4 holds one value of each of four neighbouring rows, which go together
//   else         all are edges
// GROUP 1: LANES_PER_ROW invocations of a group share a row, and combine what they found by a tree in shared memory; else there is
// one invocation for a row and no barrier, which CPU drivers would pay for even where it is never reached.
#if VEC4_ONLY
const uint ACROSS = 0u;
#else
layout(constant_id = 3) const uint ACROSS = 0;
#endif
layout(constant_id = 4) const uint LANES_PER_ROW = 1; // a power of two, at most the local size; 1 without GROUP

uint rows_of_group() { return gl_WorkGroupSize.x / LANES_PER_ROW; }
// Neighbouring invocations are neighbours in memory.
uint row_in_group() {
    return ACROSS != 0u ? gl_LocalInvocationIndex % rows_of_group() : gl_LocalInvocationIndex / LANES_PER_ROW;
}
uint lane() { return ACROSS != 0u ? gl_LocalInvocationIndex / rows_of_group() : gl_LocalInvocationIndex % LANES_PER_ROW; }

struct Row {
    uint first;       // word of its first value
    uint first_vec4;  // where the vec4s start
    uint vec4_stride; // vec4s from one to the next
    uint vec4_count;
    uint before; // edges before them
    uint edges;
    uint step; // words from one value to the next
};

Row row_of(uint first, uint columns, uint stride, bool there) { // there: or one past the last row, with no values
    Row row;
    row.first = first;
    row.step = stride;
    row.vec4_stride = ACROSS != 0u ? stride / 4u : 1u;
    row.before = ACROSS != 0u || stride != 1u ? 0u : min(-first & 3u, columns);
    row.first_vec4 = (first + row.before) / 4u;
    row.vec4_count = ACROSS != 0u ? columns : stride == 1u ? (columns - row.before) / 4u : 0u;
    row.edges = ACROSS != 0u ? 0u : columns - 4u * row.vec4_count;
    row.vec4_count = there ? row.vec4_count : 0u;
    row.edges = there ? row.edges : 0u;
    return row;
}

uint vec4_at(Row row, uint i) { return row.first_vec4 + i * row.vec4_stride; }
// The column of an edge.
uint edge_column(Row row, uint i) { return i < row.before ? i : i + 4u * row.vec4_count; }

// Defines NAME(value): COMBINE over the lanes of a row. All invocations of a group must call it.
#if GROUP
#define DEFINE_ROW_TREE(NAME, TYPE, COMBINE) \
    shared TYPE NAME##_scratch[gl_WorkGroupSize.x]; \
    TYPE NAME(TYPE value) { \
        const uint me = gl_LocalInvocationIndex; \
        const uint apart = ACROSS != 0u ? rows_of_group() : 1u; \
        barrier(); /* the result before has been read */ \
        NAME##_scratch[me] = value; \
        for (uint reach = LANES_PER_ROW / 2u; reach > 0u; reach /= 2u) { \
            barrier(); \
            if (lane() < reach) NAME##_scratch[me] = COMBINE(NAME##_scratch[me], NAME##_scratch[me + reach * apart]); \
        } \
        barrier(); \
        return NAME##_scratch[me - lane() * apart]; \
    }
#else
#define DEFINE_ROW_TREE(NAME, TYPE, COMBINE) \
    TYPE NAME(TYPE value) { return value; }
#endif
