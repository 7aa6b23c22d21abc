// Elementwise functions on four values at once, those of FUNCTIONS in vksched/ops/elementwise/fused_elementwise.py. An operand that a function does not
// take is ignored.
#define FUSED_UNARY(X) \
    X(neg_float32) X(abs_float32) X(relu_float32) X(clip_float32) X(square_float32) \
    X(sqrt_float32) X(rsqrt_float32) X(reciprocal_float32) X(exp_float32) X(log_float32) \
    X(tanh_float32) X(sigmoid_float32) X(silu_float32) X(erf_float32) X(gelu_float32) \
    X(gelu_tanh_float32) X(gelu_slope_float32) X(gelu_tanh_slope_float32) \
    X(softplus_float32) X(mish_float32) X(elu_float32) \
    X(leaky_relu_float32) X(hard_sigmoid_float32) X(hard_swish_float32) X(expm1_float32) \
    X(log1p_float32) X(sin_float32) X(cos_float32) X(floor_float32) X(ceil_float32) \
    X(round_float32) X(trunc_float32) X(sign_float32) X(int32_to_float32) X(bool_to_float32) \
    X(float32_to_bool) X(logical_not_bool)
#define FUSED_BINARY(X) \
    X(add_float32) X(sub_float32) X(mul_float32) X(div_float32) X(pow_float32) \
    X(maximum_float32) X(minimum_float32) X(prelu_float32) X(equal_float32) X(not_equal_float32) \
    X(less_float32) X(less_equal_float32) X(greater_float32) X(greater_equal_float32) \
    X(bitwise_and_int32) X(bitwise_or_int32) X(bitwise_xor_int32)
#define FUSED_TERNARY(X) X(where)
