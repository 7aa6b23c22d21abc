// Unsigned keys in the order of the values: -0 and 0 are equal, NaN is the largest of all.
const uint NAN_KEY = 0xffffffffu;

uint float_key(uint word) {
    const uint size = word & 0x7fffffffu;
    if (size > 0x7f800000u) return NAN_KEY;
    if (size == 0u) return 0x80000000u;
    return word == size ? word | 0x80000000u : ~word;
}

uint int_key(uint word) { return word ^ 0x80000000u; }
