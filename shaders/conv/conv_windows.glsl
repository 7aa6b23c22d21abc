// Windows of a convolution as columns of a matrix, which a kernel gathers on their way to shared memory: the place where each begins, the
// taps of the steps along channels * taps, the values, and the stores of results. Shared by conv_coopmat.comp and conv_vec4.comp, which
// declare KERNEL_Z, KERNEL_Y and KERNEL_X. After conv.glsl.
const uint BEYOND = 1u << 30; // with any place it is outside
#define STEPS_OF_CHANNEL (KERNEL_Z * KERNEL_Y * KERNEL_X)
#define W_LINE ((channels * STEPS_OF_CHANNEL + 3u) / 4u * 4u)
#define RESULT_PLACES (result_sizes[0] * result_sizes[1] * result_sizes[2])
#define COLUMNS (images * RESULT_PLACES)

uint word_of(uvec3 place) { return (place.x * x_sizes[1] + place.y) * x_sizes[2] + place.z; }

// Returns the word of x where a column's window begins. from: its place.
uint window_start(uint group, uint column, out uvec3 from) {
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    uint image;
    const uvec3 to = split_place(min(column, COLUMNS - 1u), AXES(result_sizes), image);
    from = to * AXES(stride) - AXES(begin);
    return x_offset + (image * conv_groups + group) * channels * volume + word_of(from);
}

// The words from a window's first place to the value of a step, and the places along each axis. inside: it is of the product.
uvec4 tap_of(uint step, bool inside) {
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    uint channel;
    const uvec3 reach = split_place(step, uvec3(KERNEL_Z, KERNEL_Y, KERNEL_X), channel) * AXES(dilation);
    return inside ? uvec4(channel * volume + word_of(reach), reach) : uvec4(0u, 0u, 0u, BEYOND);
}

// The value of a tap, 0 outside. guarded: of the last axes, those where a place may be outside.
float window_value(uint at, uvec3 from, uvec4 tap, uint guarded) {
    const bvec3 over = greaterThanEqual(from + tap.yzw, AXES(x_sizes));
    const bool inside = !any(bvec3(guarded > 2u && over.x, guarded > 1u && over.y, guarded > 0u && over.z));
    const float value = x[inside ? at + tap.x : x_offset];
    return inside ? value : 0.0;
}

// Stores four results of a row. part: of the sums, 0 if they are whole.
void store_columns(uint part, uint group, uint row, uint column, vec4 values) {
    if (row >= rows || column >= COLUMNS) return;
    const uvec4 own = elements(column, COLUMNS - 1u);
    const uvec4 image = own / RESULT_PLACES;
    const uvec4 to = ((part * images + image) * conv_groups + group) * rows + row;
    store(COLUMNS - column, to, own - image * RESULT_PLACES, values);
}
