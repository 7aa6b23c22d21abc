// Activations of a GATE, and rotary embedding: the cosines are in place of a bias, and the sines in place of a residual.
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

#define rotated rotations[weight]
#define INTERLEAVED (ROTARY - 1u)
#define cosine bias
#define cosine_offset bias_offset
#define sine_offset residual_offset
#include "rotary.glsl"
