// Shared by attention and its gradients: the weight of a score, and where the mask of a row lies.

// exp(score - largest), which is not over 1; 0 for a hidden key.
float weigh(float score, float largest) {
    const float x = score - largest;
    const float e = exp(mix(x, -104.0, x < -104.0));
    const float weight = mix(mix(e, 0.0, x < -104.0), x, is_nan(x));
    return mix(weight, 0.0, floatBitsToUint(score) == 0xff800000u);
}

// The word of the mask of a row's first key.
uint find_mask(uint batch, uint row) {
#ifdef MASKED
    const uint head = batch % heads * (rows / queries) + row / queries;
    return mask_offset + batch / heads * mask_strides[0] + head * mask_strides[1] + row % queries * mask_strides[2];
#else
    return 0u;
#endif
}
