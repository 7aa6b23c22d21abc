#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row.
// x, result: (rows, columns), gamma, beta: (columns), columns a multiple of four. CENTERED 0: mean is 0, which is the RMS norm.
// One invocation computes four rows, each read twice: mean and squares are joined block by block; gamma and beta are read once.
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (joining blocks); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint CENTERED = 1;
layout(constant_id = 4) const uint HAS_GAMMA = 0;
layout(constant_id = 5) const uint HAS_BETA = 0;
const uint ROWS = 4u;

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Gamma { vec4 gamma[]; };
layout(set = 0, binding = 2) readonly buffer Beta { vec4 beta[]; };
layout(set = 0, binding = 3) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint gamma_offset;
    uint beta_offset;
    uint result_offset;
    uint rows;
    uint columns;
    float eps;
};

float sum_of(vec4 four) { return (four.x + four.y) + (four.z + four.w); }

vec4 if_centered(vec4 value) { return mix(vec4(0.0), value, bvec4(CENTERED != 0u)); }

// The mean, what its rounding left out, and what differences from the mean are multiplied by; the first two are 0 of an RMS
// norm. Summed up around the middle one of three values, so that neither a mean far from 0 nor one value far from all others
// costs digits; each component apart.
vec3 about(uint first, uint quads) {
    const uint whole = quads / 4u * 4u;
    const float one = x[first].x;
    const float two = x[first + quads / 2u].y;
    const float three = x[first + quads - 1u].z;
    const float between = max(min(one, two), min(max(one, two), three));
    const float pivot = if_centered(vec4(between)).x;
    vec4 mean = vec4(0.0);
    vec4 squares = vec4(0.0);
    float count = 0.0; // of each component
    for (uint i = 0u; i < whole; i += 4u) {
        const vec4 a = x[first + i] - pivot;
        const vec4 b = x[first + i + 1u] - pivot;
        const vec4 c = x[first + i + 2u] - pivot;
        const vec4 d = x[first + i + 3u] - pivot;
        const vec4 block = if_centered(((a + b) + (c + d)) * 0.25);
        const vec4 e = a - block;
        const vec4 f = b - block;
        const vec4 g = c - block;
        const vec4 h = d - block;
        const float share = 4.0 / (count + 4.0);
        const vec4 apart = block - mean;
        mean += apart * share;
        squares += ((e * e + f * f) + (g * g + h * h)) + apart * (count * share) * apart;
        count += 4.0;
    }
    for (uint i = whole; i < quads; ++i) {
        const vec4 value = x[first + i] - pivot;
        const float share = 1.0 / (count + 1.0);
        const vec4 block = if_centered(value);
        const vec4 rest = value - block;
        const vec4 apart = block - mean;
        mean += apart * share;
        squares += rest * rest + apart * (count * share) * apart;
        count += 1.0;
    }
    const float middle = mean.x + sum_of(mean - mean.x) * 0.25;
    const vec4 apart = mean - middle;
    const float variance = (sum_of(squares) + sum_of(apart * apart) * count) / float(columns);
    precise const float rounded = pivot + middle;
    precise const float rest = (pivot - rounded) + middle;
    return vec3(rounded, rest, 1.0 / sqrt(variance + eps));
}

vec4 normed(vec4 value, vec3 known) {
    precise const vec4 centered = (value - known.x) - known.y;
    return centered * known.z;
}

void main() {
    const uint quads = columns / 4u;
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    const uint from = x_offset / 4u;
    const uint to = result_offset / 4u;
    for (uint item = gl_GlobalInvocationID.x; item * ROWS < rows; item += step) {
        // written out: SwiftShader reads an array in a loop as slowly as a buffer; where there are no more rows, the last again
        const uvec4 row = min(item * ROWS + uvec4(0u, 1u, 2u, 3u), uvec4(rows - 1u)) * quads;
        const vec3 a = about(from + row.x, quads);
        const vec3 b = about(from + row.y, quads);
        const vec3 c = about(from + row.z, quads);
        const vec3 d = about(from + row.w, quads);
        for (uint i = 0u; i < quads; ++i) {
            vec4 factor = vec4(1.0);
            vec4 shift = vec4(0.0);
            if (HAS_GAMMA != 0u) factor = gamma[gamma_offset / 4u + i];
            if (HAS_BETA != 0u) shift = beta[beta_offset / 4u + i];
            result[to + row.x + i] = normed(x[from + row.x + i], a) * factor + shift;
            result[to + row.y + i] = normed(x[from + row.y + i], b) * factor + shift;
            result[to + row.z + i] = normed(x[from + row.z + i], c) * factor + shift;
            result[to + row.w + i] = normed(x[from + row.w + i], d) * factor + shift;
        }
    }
}
