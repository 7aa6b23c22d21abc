// The steps k of a window, and the places i where it starts, that a transposed convolution adds up at a place:
// i * STRIDE + k * DILATION - begin = at. Such steps are EVERY apart. Strides are constants, as CPUs divide by others one number
// at a time. For kernels that push begin and kernel.
layout(constant_id = 3) const uint STRIDE_Z = 1;
layout(constant_id = 4) const uint STRIDE_Y = 1;
layout(constant_id = 5) const uint STRIDE_X = 1;
layout(constant_id = 6) const uint DILATION_Z = 1;
layout(constant_id = 7) const uint DILATION_Y = 1;
layout(constant_id = 8) const uint DILATION_X = 1;
layout(constant_id = 9) const uint EVERY_Z = 1;
layout(constant_id = 10) const uint EVERY_Y = 1;
layout(constant_id = 11) const uint EVERY_X = 1;

Reach reach_of(uint at, uint steps, uint stride, uint dilation, uint every) {
    uint place = at / stride;
    uint rest = at - place * stride;
    const uint down = dilation / stride;
    const uint less = dilation - down * stride;
    uint step = 0u;
    for (; step < every && rest != 0u; ++step) {
        const bool borrows = rest < less;
        rest += (borrows ? stride : 0u) - less;
        place -= down + (borrows ? 1u : 0u);
    }
    return Reach(rest == 0u ? step : steps, place, every, dilation * every / stride);
}

#define REACHED_Z(at) reach_of((at) + begin[0], kernel[0], STRIDE_Z, DILATION_Z, EVERY_Z)
#define REACHED_Y(at) reach_of((at) + begin[1], kernel[1], STRIDE_Y, DILATION_Y, EVERY_Y)
#define REACHED_X(at) reach_of((at) + begin[2], kernel[2], STRIDE_X, DILATION_X, EVERY_X)
