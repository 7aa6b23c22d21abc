// Unsigned keys in the order of the values: -0 and 0 are equal, NaN is the largest of all.
const uint NAN_KEY = 0xffffffffu;

uint float_key(uint word) {
    const uint size = word & 0x7fffffffu;
    const uint key = mix(~word, word | 0x80000000u, word == size || size == 0u);
    return mix(key, NAN_KEY, size > 0x7f800000u);
}

uint int_key(uint word) { return word ^ 0x80000000u; }
