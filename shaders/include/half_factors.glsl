// How both factors of a product by matrix units come to shared memory as float16 (matrix_units.glsl).

// Four values as halves, in two words.
uvec2 halves(uvec2 words) { return words; }
uvec2 halves(vec4 values) { return uvec2(packFloat2x16(f16vec2(values.xy)), packFloat2x16(f16vec2(values.zw))); }

// Of two columns of halves, four steps along k each, the lower or the upper one.
uvec2 lower(uint s, uint t, uint u, uint v) { return uvec2(s & 0xffffu | t << 16, u & 0xffffu | v << 16); }
uvec2 upper(uint s, uint t, uint u, uint v) { return uvec2(s >> 16 | t & 0xffff0000u, u >> 16 | v & 0xffff0000u); }

// How lines (rows of a, columns of b) come to shared memory: `start` at a tile, then for each TILE_K steps `fetch`, which begins to
// load them, and `put`. `fetch_edge` is for the first steps, where these are fewer; the others are 0. Lines over the edge repeat the
// last one, and are not stored. In turn an invocation reads eights of lines, or along a line four lines at eight steps, as `load`.
#define DEFINE_FACTOR(name, load, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    const uint name##_IDS = along_k ? tile_lines * EIGHTS : tile_lines / 4u * EIGHTS; \
    const uint name##_TURNS = name##_IDS > SIZE ? name##_IDS / SIZE : 1u; \
    const uint name##_READS = along_k ? 2u : 8u; \
    load name##_read[name##_TURNS * name##_READS]; \
    uint name##_at[name##_TURNS]; \
    uvec2 name##_own(uint turn) { /* the first line in the tile, and the eight */ \
        const uint id = (gl_LocalInvocationID.x + turn * SIZE) % name##_IDS; \
        return along_k ? uvec2(id / EIGHTS, id % EIGHTS) : uvec2(id % (tile_lines / 4u) * 4u, id / (tile_lines / 4u)); \
    } \
    void name##_start(uint first, uint line) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            const uvec2 own = name##_own(i); \
            if (along_k) { \
                name##_at[i] = (first + min(line + own.x, lines - 1u) * of_line) / 4u + own.y * 2u; \
            } else { \
                name##_at[i] = (first + min(line + own.x, (lines - 1u) / 4u * 4u) + own.y * 8u * of_step) / 4u; \
            } \
        } \
    } \
    void name##_fetch(uint step) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                const uint on = along_k ? step / 4u + j : (step + j) * (of_step / 4u); \
                name##_read[i * name##_READS + j] = from[name##_at[i] + on]; \
            } \
        } \
    } \
    void name##_fetch_edge(uint steps) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                const bool inside = name##_own(i).y * 8u + j * (along_k ? 4u : 1u) < steps; \
                const uint on = along_k ? j : j * (of_step / 4u); \
                const load read = from[inside ? name##_at[i] + on : 0u]; \
                name##_read[i * name##_READS + j] = inside ? read : load(0); \
            } \
        } \
    } \
    void name##_put() { \
        if (gl_LocalInvocationID.x >= name##_IDS) return; \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            const uvec2 own = name##_own(i); \
            const uint to = own.x * LINE + own.y; \
            if (along_k) { \
                tile[to] = uvec4(halves(name##_read[i * 2u]), halves(name##_read[i * 2u + 1u])); \
            } else { \
                uvec2 r[8]; \
                [[unroll]] for (uint j = 0u; j < 8u; ++j) r[j] = halves(name##_read[i * name##_READS + j % name##_READS]); \
                [[unroll]] for (uint c = 0u; c < 2u; ++c) { \
                    tile[to + c * 2u * LINE] = \
                        uvec4(lower(r[0][c], r[1][c], r[2][c], r[3][c]), lower(r[4][c], r[5][c], r[6][c], r[7][c])); \
                    tile[to + (c * 2u + 1u) * LINE] = \
                        uvec4(upper(r[0][c], r[1][c], r[2][c], r[3][c]), upper(r[4][c], r[5][c], r[6][c], r[7][c])); \
                } \
            } \
        } \
    }
