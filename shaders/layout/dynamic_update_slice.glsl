// The kernel of dynamic_update_slice.comp and dynamic_update_slices.comp, which define row_word(i) and write_word(i, word).
#include "slots.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint slice = i / (many * inner);
        const uint row = uint(start_of(slice)) + i / inner % many; // below 0 it is large
        const uint target = target_slice(slice);
        if (row < size && target != NOWHERE)
            write_word((target * size + row) * inner + i % inner, row_word(i));
    }
}
