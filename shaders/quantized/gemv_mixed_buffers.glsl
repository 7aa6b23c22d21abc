// Buffers and push block of quant_gemv_mixed.glsl.
layout(constant_id = 12) const uint BIASED = 0;
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer Scale { vec4 scale[]; };
layout(set = 0, binding = 2) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 3) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 4) readonly buffer Third { LOAD_OF_B third[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 6) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 7) readonly buffer Residual { uint residual[]; } residual_buffer;
VIEWS(2, b)
VIEWS(3, second)
VIEWS(4, third)
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
