// The state of a lane of reduce.comp over its part of a row, for each variant: NOTHING is the state before the first value, take
// adds a value, combine joins two states, finish is the result. A state is STATE_WORDS words in memory. take and combine have
// no branches: SwiftShader goes through all of them, one lane's after another's, and takes seconds to compile some in a row.
// Source: Knuth, The Art of Computer Programming 2, 4.2.2 (means and deviations in one pass).
#include "float_math.glsl"
#include "two_sum.glsl"

// A total and the rounding errors made on the way to it.
vec2 add(vec2 left, vec2 right) {
    const vec2 sum = two_sum(left.x, right.x);
    return vec2(sum.x, left.y + right.y + sum.y);
}

// An infinite or undefined total has no rounding error.
float total_of(vec2 sum) { return is_nan(sum.x) || is_inf(sum.x) ? sum.x : sum.x + sum.y; }

#if defined(SUM_FLOAT32) || defined(MEAN_FLOAT32) || defined(L1_FLOAT32) || defined(SUM_SQUARE_FLOAT32)
#define FLOAT_SUM
#define ROW_TYPE vec2
#define STATE_WORDS 2u
const vec2 NOTHING = vec2(0.0);
uvec4 to_words(vec2 state) { return uvec4(floatBitsToUint(state), 0u, 0u); }
vec2 from_words(uvec4 words) { return uintBitsToFloat(words.xy); }
vec2 combine(vec2 left, vec2 right) { return add(left, right); }
vec2 take(vec2 state, uint word, uint column) {
#if defined(L1_FLOAT32)
    const float value = uintBitsToFloat(word & 0x7fffffffu);
#else
    const float value = uintBitsToFloat(word);
#endif
#if defined(SUM_SQUARE_FLOAT32)
    return add(state, vec2(value * value, 0.0));
#else
    return add(state, vec2(value, 0.0));
#endif
}
uint finish(vec2 state, float divisor, uint option) {
    float value = total_of(state);
#if defined(MEAN_FLOAT32)
    value = divisor == 0.0 ? NOT_A_NUMBER : value / divisor;
#endif
    return floatBitsToUint(value);
}

#elif defined(PROD_FLOAT32)
// Mantissa and exponent apart, so that a product may pass the range of float32 midway: value = state.x * 2^state.y.
#define ROW_TYPE uvec2
#define STATE_WORDS 2u
#define NOTHING uvec2(0x3f800000u, 0u)
uvec4 to_words(uvec2 state) { return uvec4(state, 0u, 0u); }
uvec2 from_words(uvec4 words) { return words.xy; }
uvec2 split(float value, uint exponent) {
    const uint word = floatBitsToUint(value);
    const uint biased = word >> 23 & 255u;
    // so far out that nothing comes back; without the clamp the exponent of millions of factors would wrap
    const int sum = clamp(int(exponent) + int(biased) - 127, -(1 << 29), 1 << 29);
    const uvec2 apart = uvec2((word & 0x807fffffu) | 0x3f800000u, uint(sum));
    return mix(uvec2(word, 0u), apart, bvec2(biased - 1u < 254u)); // else 0, infinity, NaN
}
uvec2 combine(uvec2 left, uvec2 right) {
    return split(uintBitsToFloat(left.x) * uintBitsToFloat(right.x), left.y + right.y);
}
uvec2 take(uvec2 state, uint word, uint column) {
    const uint fraction = word & 0x007fffffu;
    const bool denormal = (word & 0x7fffffffu) == fraction && fraction != 0u; // a driver may take it for 0
    const uint whole = floatBitsToUint(float(fraction)) | (word & 0x80000000u);
    return combine(state, split(uintBitsToFloat(mix(word, whole, denormal)), mix(0u, uint(-149), denormal)));
}
uint finish(uvec2 state, float divisor, uint option) {
    const int exponent = int(state.y);
    const uint sign_bit = state.x & 0x80000000u;
    if ((state.x & 0x7f800000u) != 0x3f800000u) return state.x;
    if (exponent > 127) return sign_bit | 0x7f800000u;
    if (exponent < -150) return sign_bit;
    if (exponent >= -126) return state.x + (state.y << 23);
    return floatBitsToUint(uintBitsToFloat(state.x) * uintBitsToFloat(1u << 23) * uintBitsToFloat(uint(exponent + 253) << 23));
}

#elif defined(MAX_FLOAT32) || defined(MIN_FLOAT32)
#define ROW_TYPE float
#define STATE_WORDS 1u
uvec4 to_words(float state) { return uvec4(floatBitsToUint(state), 0u, 0u, 0u); }
float from_words(uvec4 words) { return uintBitsToFloat(words.x); }
#if defined(MAX_FLOAT32)
#define NOTHING (-INFINITY)
float combine(float left, float right) { return safe_max(left, right); }
#else
#define NOTHING INFINITY
float combine(float left, float right) { return safe_min(left, right); }
#endif
float take(float state, uint word, uint column) { return combine(state, uintBitsToFloat(word)); }
uint finish(float state, float divisor, uint option) { return floatBitsToUint(state); }

#elif defined(LOGSUMEXP_FLOAT32)
// The largest value so far and the sum of exp(value - largest), with its rounding error.
#define ROW_TYPE vec3
#include "exp_quad.glsl"
#define STATE_WORDS 3u
#define NOTHING vec3(-INFINITY, 0.0, 0.0)
uvec4 to_words(vec3 state) { return uvec4(floatBitsToUint(state), 0u); }
vec3 from_words(uvec4 words) { return uintBitsToFloat(words.xyz); }
vec3 combine(vec3 left, vec3 right) {
    const float largest = safe_max(left.x, right.x);
    const float power = exp_of_negative(safe_min(left.x, right.x) - largest);
    const float of_left = mix(power, 1.0, left.x == largest); // infinities are equal too
    const float of_right = mix(power, 1.0, right.x == largest);
    return vec3(largest, add(left.yz * of_left, right.yz * of_right));
}
vec3 take(vec3 state, uint word, uint column) { return combine(state, vec3(uintBitsToFloat(word), 1.0, 0.0)); }
uint finish(vec3 state, float divisor, uint option) {
    if (is_nan(state.x) || is_inf(state.x)) return floatBitsToUint(state.x);
    return floatBitsToUint(state.x + safe_log(state.y + state.z));
}

#elif defined(VAR_FLOAT32)
// How many values, their mean in two parts, the sum of the squared deviations from it: NaN once a value is not finite,
// infinity once the deviations are.
bool is_finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
#define ROW_TYPE vec4
#define STATE_WORDS 4u
const vec4 NOTHING = vec4(0.0);
uvec4 to_words(vec4 state) { return floatBitsToUint(state); }
vec4 from_words(uvec4 words) { return uintBitsToFloat(words); }
vec4 combine(vec4 left, vec4 right) {
    const float count = left.x + right.x;
    const float share = right.x / count;
    precise const float between = right.y - left.y;
    precise const float apart = between + (right.z - left.z);
    const vec2 mean = add(left.yz, vec2(apart * share, 0.0));
    const float rest = left.w + right.w;
    vec3 known = vec3(mean, rest + apart * apart * (left.x * share));
    known = mix(known, vec3(left.yz, INFINITY), bvec3(is_inf(apart)));
    known = mix(vec3(left.yz, rest), known, bvec3(is_finite(rest)));
    const vec4 joined = mix(vec4(count, known), right, bvec4(left.x == 0.0));
    return mix(joined, left, bvec4(right.x == 0.0));
}
vec4 take(vec4 state, uint word, uint column) {
    const float value = uintBitsToFloat(word);
    const float count = state.x + 1.0;
    precise const float before = value - state.y;
    precise const float apart = before - state.z;
    const vec2 mean = add(state.yz, vec2(apart / count, 0.0));
    precise const float after = value - mean.x;
    precise const float still_apart = after - mean.y;
    vec3 known = vec3(mean, state.w + apart * still_apart);
    known = mix(known, vec3(state.yz, INFINITY), bvec3(is_inf(apart)));
    known = mix(state.yzw, known, bvec3(is_finite(state.w)));
    known = mix(known, vec3(value, 0.0, 0.0), bvec3(state.x == 0.0)); // a division, even by 1, may round
    known = mix(vec3(state.yz, NOT_A_NUMBER), known, bvec3(is_finite(value)));
    return vec4(count, known);
}
uint finish(vec4 state, float divisor, uint option) {
    float value = state.w / divisor;
    if (divisor == 0.0) value = state.w > 0.0 ? INFINITY : NOT_A_NUMBER;
    if (is_nan(state.w)) value = NOT_A_NUMBER; // infinity less infinity
    return floatBitsToUint(value);
}

#elif defined(ARGMAX_FLOAT32) || defined(ARGMIN_FLOAT32) || defined(ARGMAX_INT32) || defined(ARGMIN_INT32) \
    || defined(ARGMAX_UINT32) || defined(ARGMIN_UINT32)
// The largest key, and among equal keys the largest tie: the column (last index wins) or its complement (first index wins).
// Nothing is the least of all: no value, or the one at column 0 when the last index wins, which it then stands for.
#define ROW_TYPE uvec2
#define STATE_WORDS 2u
#include "sort_key.glsl"
const uvec2 NOTHING = uvec2(0u);
uvec4 to_words(uvec2 state) { return uvec4(state, 0u, 0u); }
uvec2 from_words(uvec4 words) { return words.xy; }
uvec2 combine(uvec2 left, uvec2 right) {
    const bool larger = right.x > left.x;
    const bool alike = right.x == left.x;
    const bool later = right.y > left.y;
    return mix(left, right, bvec2(larger || alike && later));
}
uvec2 take(uvec2 state, uint word, uint tie) {
#if defined(ARGMAX_FLOAT32)
    return combine(state, uvec2(float_key(word), tie));
#elif defined(ARGMIN_FLOAT32)
    const uint key = float_key(word);
    return combine(state, uvec2(mix(~key, key, key == NAN_KEY), tie)); // NaN wins here too
#elif defined(ARGMAX_INT32)
    return combine(state, uvec2(int_key(word), tie));
#elif defined(ARGMIN_INT32)
    return combine(state, uvec2(~int_key(word), tie));
#elif defined(ARGMAX_UINT32)
    return combine(state, uvec2(word, tie));
#else
    return combine(state, uvec2(~word, tie));
#endif
}
uint finish(uvec2 state, float divisor, uint option) { return state.y ^ option; }

#else
#define ROW_TYPE uint
#define STATE_WORDS 1u
uvec4 to_words(uint state) { return uvec4(state, 0u, 0u, 0u); }
uint from_words(uvec4 words) { return words.x; }
#if defined(SUM_INT32)
const uint NOTHING = 0u;
uint combine(uint left, uint right) { return left + right; }
#elif defined(PROD_INT32)
const uint NOTHING = 1u;
uint combine(uint left, uint right) { return left * right; }
#elif defined(MAX_INT32)
const uint NOTHING = 0x80000000u;
uint combine(uint left, uint right) { return uint(max(int(left), int(right))); }
#elif defined(MIN_INT32)
const uint NOTHING = 0x7fffffffu;
uint combine(uint left, uint right) { return uint(min(int(left), int(right))); }
#elif defined(MAX_UINT32)
const uint NOTHING = 0u;
uint combine(uint left, uint right) { return max(left, right); }
#elif defined(MIN_UINT32)
const uint NOTHING = 0xffffffffu;
uint combine(uint left, uint right) { return min(left, right); }
#elif defined(ANY_BOOL)
const uint NOTHING = 0u;
uint combine(uint left, uint right) { return left | right; }
#elif defined(ALL_BOOL)
const uint NOTHING = 1u;
uint combine(uint left, uint right) { return left & right; }
#endif
uint take(uint state, uint word, uint column) { return combine(state, word); }
uint finish(uint state, float divisor, uint option) { return state; }
#endif
