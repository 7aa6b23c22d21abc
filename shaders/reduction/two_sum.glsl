// The sum of two values and the error that rounding it makes.
// Source: Knuth, The Art of Computer Programming 2, 4.2.2 (the exact error of a sum).
vec2 two_sum(float left, float right) {
    precise const float total = left + right;
    precise const float part = total - left;
    precise const float left_over = left - (total - part);
    precise const float right_over = right - part;
    precise const float error = left_over + right_over;
    return vec2(total, error);
}
