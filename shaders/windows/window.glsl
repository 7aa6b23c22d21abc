// What kernels over windows share: one invocation takes items first_item..last_item - 1 in turn; three spatial axes.
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

// The place whose window of a transposed convolution has `scaled` as its multiple by the stride; far outside where there is
// none. Below 0, scaled has wrapped to far outside itself.
uint source_place(uint scaled, uint step) {
    const uint place = scaled / step;
    return place * step == scaled ? place : 0xffffffffu;
}

#define AXES(values) uvec3(values[0], values[1], values[2])
#define FOR_EACH_ITEM(item) \
    for (uint item = first_item + gl_GlobalInvocationID.x; item < last_item; \
         item += gl_NumWorkGroups.x * gl_WorkGroupSize.x)
