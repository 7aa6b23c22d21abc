// Buffers and push block of quant_gemv_mixed.glsl with a rotary embedding.
#define ROTARY
layout(constant_id = 12) const uint INTERLEAVED = 0;
#include "gemv_mixed_inputs.glsl"
layout(set = 0, binding = 5) readonly buffer Cosine { float cosine[]; };
layout(set = 0, binding = 6) readonly buffer Sine { float sine[]; };
layout(set = 0, binding = 7) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 8) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint a_offset;
    uint scale_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint cosine_offset;
    uint sine_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint n;
    uint k;
    uint ends[2]; // the columns where the first and the second weight end, without a gate
    uint b_column; // words of a row of a weight
    float eps;
    uint rotated; // columns of heads with rotary embedding
    uint head_size;
    uint rotary_pairs;
};
