// Shared by both RNN kernels: the new state from the gates. Before it stand the buffer `extra`, a push block
// with `hidden`, `lengths_at` and `clip`, and `direction` and `time_now`, where a state is.
#include "float_math.glsl"
layout(constant_id = 3) const uint FIRST_ACTIVATIONS = 0;
layout(constant_id = 4) const uint OTHER_ACTIVATIONS = 0;
layout(constant_id = 5) const uint COUPLED = 0;
layout(constant_id = 6) const uint LINEAR = 0;
layout(constant_id = 7) const uint HAS_OWN = 0;
layout(constant_id = 8) const uint HAS_LENGTHS = 0;

float own_of(uint gate, uint unit) {
    return HAS_OWN != 0u ? uintBitsToFloat(extra[extra_offset + (direction * GATES + gate) * hidden + unit]) : 0.0;
}

bool is_alive(uint sequence) {
    if (HAS_LENGTHS == 0u) return true;
    return int(time_now) < int(extra[extra_offset + lengths_at + sequence]);
}

float activate(uint which, float x) {
    if (clip > 0.0) x = mix(clamp(x, -clip, clip), x, is_nan(x));
    const uint codes = direction == 0u ? FIRST_ACTIVATIONS : OTHER_ACTIVATIONS;
    const uint code = (codes >> (2u * which)) & 3u;
    if (code == 0u) return sigmoid(x);
    if (code == 1u) return safe_tanh(x);
    return mix(x, 0.0, is_negative(floatBitsToUint(x)));
}

#if GATES == 4
// The own weights of the input, output and forget gates.
vec3 own_of_gates(uint unit) { return vec3(own_of(0u, unit), own_of(1u, unit), own_of(2u, unit)); }

// given: what goes into the gates input, output, forget and cell; c before, and after. Returns h.
float lstm_of(vec4 given, vec3 own, inout float c) {
    const float into = activate(0u, HAS_OWN != 0u ? given.x + own.x * c : given.x);
    float forget = 1.0 - into;
    if (COUPLED == 0u) forget = activate(0u, HAS_OWN != 0u ? given.z + own.z * c : given.z);
    c = forget * c + into * activate(1u, given.w);
    const float open = activate(0u, HAS_OWN != 0u ? given.y + own.y * c : given.y);
    return open * activate(2u, c);
}
#endif
