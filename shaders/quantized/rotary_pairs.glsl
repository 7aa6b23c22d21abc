// Rotary embedding (rotary.glsl) where the columns of a head stand in the order of their pairs: both of a pair side by side, at an even slot and
// the next one. The shader has tables `cosine` and `sine` of floats, (rows, rotary_pairs), and the fields that rotary.glsl names.
uint column_of(uint slot) {
    const uint own = slot % head_size;
    if (INTERLEAVED != 0u || slot >= rotated || own >= 2u * rotary_pairs) return slot;
    return slot - own + own / 2u + own % 2u * rotary_pairs;
}

// The result at a slot, of it and of the other one of its pair.
float rotate_pair(float x, float partner, uint row, uint slot) {
    const uint own = slot % head_size;
    if (slot >= rotated || own >= 2u * rotary_pairs) return x;
    const uint at = row * rotary_pairs + own / 2u;
    const float c = cosine[cosine_offset + at], s = sine[sine_offset + at];
    return fma(partner, own % 2u == 0u ? -s : s, x * c);
}
