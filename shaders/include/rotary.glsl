// Rotary embedding of the results of a product, before they are stored. The first `rotated` columns are heads of head_size values. Pairs of a
// head are (p, p + rotary_pairs), or with INTERLEAVED (2 p, 2 p + 1); values behind the pairs stay as they are.
// The shader has tables `cosine` and `sine` of floats, (rows, rotary_pairs) from cosine_offset and sine_offset on, and these fields:
// rotated, head_size, rotary_pairs. Heads are of multiples of eight values, and pairs that are not interleaved multiples of four.
// Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.

// The first column of four number `four` of a row, in the order in which a kernel computes them: both fours of pairs stand side by side, at an
// even number and the next one.
uint rotary_column(uint four) {
    const uint column = four * 4u;
    if (INTERLEAVED != 0u || column >= rotated) return column;
    const uint own = four % (head_size / 4u);
    const uint place = own < rotary_pairs / 2u ? own / 2u + own % 2u * (rotary_pairs / 4u) : own;
    return column - own * 4u + place * 4u;
}

// Four results of a row from `column` on. partner: the four of the other values of their pairs, which INTERLEAVED does not read.
vec4 rotate(vec4 x, vec4 partner, uint row, uint column) {
    const uint own = column % head_size;
    if (column >= rotated || own >= 2u * rotary_pairs) return x;
    if (INTERLEAVED != 0u) {
        const uint at = row * rotary_pairs + own / 2u;
        const bool both = own / 2u + 1u < rotary_pairs;
        const uvec2 pairs = uvec2(at, both ? at + 1u : at);
        const vec2 c = vec2(cosine[cosine_offset + pairs.x], both ? cosine[cosine_offset + pairs.y] : 1.0);
        const vec2 s = vec2(sine[sine_offset + pairs.x], both ? sine[sine_offset + pairs.y] : 0.0);
        return both ? vec4(x.xz * c - x.yw * s, x.xz * s + x.yw * c).xzyw : vec4(x.x * c.x - x.y * s.x, x.x * s.x + x.y * c.x, x.zw);
    }
    const bool upper = own >= rotary_pairs;
    const uint at = row * rotary_pairs + (upper ? own - rotary_pairs : own);
    const uvec4 pairs = at + uvec4(0u, 1u, 2u, 3u);
    const uvec4 c_at = cosine_offset + pairs, s_at = sine_offset + pairs;
    const vec4 c = vec4(cosine[c_at.x], cosine[c_at.y], cosine[c_at.z], cosine[c_at.w]);
    const vec4 s = vec4(sine[s_at.x], sine[s_at.y], sine[s_at.z], sine[s_at.w]);
    return x * c + (upper ? partner * s : -partner * s);
}
