// Shared by the kernels over windows: one invocation takes items first_item..last_item - 1 in turn; three spatial axes.
// An item is a block of results with the last spatial axis innermost.

// Index along each spatial axis of a place among sizes; what is left beyond them goes to rest.
uvec3 split_place(uint index, uvec3 sizes, out uint rest) {
    uvec3 place;
    uint next = index / sizes.z;
    place.z = index - next * sizes.z;
    index = next;
    next = index / sizes.y;
    place.y = index - next * sizes.y;
    rest = next / sizes.x;
    place.x = next - rest * sizes.x;
    return place;
}

// Steps of a window along one axis, each `every` after the one before, and the place that each meets, `back` before that of
// the one before. Places below 0 wrap to far outside.
struct Reach {
    uint step;
    uint place;
    uint every;
    uint back;
};

#define AXES(values) uvec3(values[0], values[1], values[2])
#define FOR_EACH_ITEM(item) \
    for (uint item = first_item + gl_GlobalInvocationID.x; item < last_item; \
         item += gl_NumWorkGroups.x * gl_WorkGroupSize.x)
