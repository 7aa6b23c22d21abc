// Elementwise functions on four values at once, by the numbers that CODES in vksched/ops/chain.py gives them. An operand that
// a function does not take is ignored. Number 0 is the first operand itself.
#define CHAIN_UNARY(X) \
    X(1, neg_float32) X(2, abs_float32) X(3, relu_float32) X(4, clip_float32) X(5, square_float32) \
    X(6, sqrt_float32) X(7, rsqrt_float32) X(8, reciprocal_float32) X(9, exp_float32) X(10, log_float32) \
    X(11, tanh_float32) X(12, sigmoid_float32) X(13, silu_float32) X(14, erf_float32) X(15, gelu_float32) \
    X(16, gelu_tanh_float32) X(17, softplus_float32) X(18, mish_float32) X(19, elu_float32) \
    X(20, leaky_relu_float32) X(21, hard_sigmoid_float32) X(22, hard_swish_float32) X(23, expm1_float32) \
    X(24, log1p_float32) X(25, sin_float32) X(26, cos_float32) X(27, floor_float32) X(28, ceil_float32) \
    X(29, round_float32) X(30, trunc_float32) X(31, sign_float32) X(32, int32_to_float32) X(33, bool_to_float32) \
    X(34, float32_to_bool) X(35, logical_not_bool)
#define CHAIN_BINARY(X) \
    X(64, add_float32) X(65, sub_float32) X(66, mul_float32) X(67, div_float32) X(68, pow_float32) \
    X(69, maximum_float32) X(70, minimum_float32) X(71, prelu_float32) X(72, equal_float32) X(73, not_equal_float32) \
    X(74, less_float32) X(75, less_equal_float32) X(76, greater_float32) X(77, greater_equal_float32) \
    X(78, bitwise_and_int32) X(79, bitwise_or_int32) X(80, bitwise_xor_int32)
#define CHAIN_TERNARY(X) X(112, where)
