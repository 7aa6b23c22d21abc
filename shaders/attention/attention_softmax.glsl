// Scores, and the steps of the online softmax. The shader has SOFTCAP and IS_BIAS, and the scale and the range of visible keys.

#include "attention_scores.glsl"

// tanh without a branch: near 0 a series, as 1 - exp loses digits there.
float plain_tanh(float x) {
    const float a = abs(x);
    const float q = x * x;
    const float near = x * (1.0 + q * (-1.0 / 3.0 + q * (2.0 / 15.0 + q * (-17.0 / 315.0 + q * 62.0 / 2835.0))));
    const float e = exp(-2.0 * mix(a, 20.0, a > 20.0));
    const float far = mix((1.0 - e) / (1.0 + e), 1.0, a > 20.0);
    return mix(mix(mix(far, -far, x < 0.0), near, a < 0.25), x, is_nan(x));
}

// The score of a product of q and k, with all that hides the key: -infinity then. end: of the keys that are seen.
// All these functions are without branches: they are written out many times, and SwiftShader takes minutes over branches.
float finish_score(float product, int query, uint mask_at, uint key, uint end) {
    float score = product * scale;
    if (SOFTCAP != 0u) score = softcap * plain_tanh(score / softcap);
    const int at = int(key);
    bool hidden = any(bvec3(key >= end, at < query + first_visible, at > query + last_visible));
#ifdef MASKED
    const uint word = mask[mask_at + min(key, end - 1u) * mask_strides[3]];
    if (IS_BIAS != 0u) score += uintBitsToFloat(word);
    hidden = any(bvec2(hidden, word == (IS_BIAS != 0u ? 0xff800000u : 0u)));
#endif
    return mix(score, -INFINITY, hidden);
}

// The larger score. A score that is NaN makes its weight NaN, and with it the total, so it need not be the largest.
float larger(float largest, float score) {
    return mix(largest, score, score > largest);
}

// By what sums shrink when a larger score comes.
float shrink(float before, float largest) { return mix(weigh(before, largest), 1.0, before == largest); }
