#version 450
// result[.., i] = x[.., i] * cos - x[.., j] * sin, result[.., j] = x[.., i] * sin + x[.., j] * cos; what lies beyond is copied.
// x, result: (batch, heads, length, depth); cosine, sine: (length, half) for each batch or for all. Pairs (i, j) are
// (p, p + half), or with INTERLEAVED (2 p, 2 p + 1). An invocation computes pairs, or two values that are copied.
// Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021; ONNX RotaryEmbedding.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint INTERLEAVED = 0;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Cosine { float cosine[]; };
layout(set = 0, binding = 2) readonly buffer Sine { float sine[]; };
layout(set = 0, binding = 3) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint cosine_offset;
    uint sine_offset;
    uint result_offset;
    uint rows;
    uint length;
    uint heads;
    uint depth;
    uint rotary_pairs;
    uint cosine_batch; // words from batch to batch
    uint sine_batch;
};

void main() {
    const uint pairs = rotary_pairs + (depth - 2u * rotary_pairs + 1u) / 2u;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < rows * pairs; i += stride) {
        const uint row = i / pairs;
        const uint pair = i % pairs;
        const uint at = row * depth;
        if (pair >= rotary_pairs) {
            const uint column = 2u * pair;
            result[result_offset + at + column] = x[x_offset + at + column];
            if (column + 1u < depth) result[result_offset + at + column + 1u] = x[x_offset + at + column + 1u];
        } else {
            const uint pair_index = row % length * rotary_pairs + pair;
            const uint batch = row / length / heads;
            const float c = cosine[cosine_offset + batch * cosine_batch + pair_index];
            const float s = sine[sine_offset + batch * sine_batch + pair_index];
            const uvec2 both = at + (INTERLEAVED != 0u ? uvec2(2u * pair, 2u * pair + 1u) : uvec2(pair, pair + rotary_pairs));
            const float left = x[x_offset + both.x];
            const float right = x[x_offset + both.y];
            result[result_offset + both.x] = left * c - right * s;
            result[result_offset + both.y] = left * s + right * c;
        }
    }
}
