// Buffers and push block of quant_gemv_mixed.glsl.
layout(constant_id = 12) const uint BIASED = 0;
#include "gemv_mixed_inputs.glsl"
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 6) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 7) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint a_offset;
    uint scale_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint n;
    uint k;
    uint ends[2]; // the columns where the first and the second weight end, without a gate
    uint b_column; // words of a row of a weight
    float eps;
};
