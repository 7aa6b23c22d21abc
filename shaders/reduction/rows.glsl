// A row is worked on by a whole group (GPUs) or by one invocation (WHOLE_GROUP 0: CPU drivers, short rows).
// Combining the lanes of a group is a tree in shared memory; the local size is a power of two.
layout(constant_id = 3) const uint WHOLE_GROUP = 1;

uint first_row() { return WHOLE_GROUP != 0u ? gl_WorkGroupID.x : gl_GlobalInvocationID.x; }
uint row_stride() { return gl_NumWorkGroups.x * (WHOLE_GROUP != 0u ? 1u : gl_WorkGroupSize.x); }
uint first_column() { return WHOLE_GROUP != 0u ? gl_LocalInvocationIndex : 0u; }
uint column_stride() { return WHOLE_GROUP != 0u ? gl_WorkGroupSize.x : 1u; }

shared ROW_TYPE row_scratch[gl_WorkGroupSize.x];

// Defines NAME(value): COMBINE over all lanes of the row. All lanes of a group must call it.
#define DEFINE_ROW_TREE(NAME, COMBINE) \
    ROW_TYPE NAME(ROW_TYPE value) { \
        if (WHOLE_GROUP == 0u) return value; \
        const uint lane = gl_LocalInvocationIndex; \
        barrier(); /* the result before has been read */ \
        row_scratch[lane] = value; \
        for (uint reach = gl_WorkGroupSize.x / 2u; reach > 0u; reach /= 2u) { \
            barrier(); \
            if (lane < reach) row_scratch[lane] = COMBINE(row_scratch[lane], row_scratch[lane + reach]); \
        } \
        barrier(); \
        return row_scratch[0]; \
    }
