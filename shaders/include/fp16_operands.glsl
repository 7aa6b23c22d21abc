// Load both factors of a product by cooperative matrices into shared memory as float16 (coopmat.glsl).

// Four values as halves, in two words.
uvec2 pack_fp16x4(uvec2 words) { return words; }
uvec2 pack_fp16x4(vec4 values) { return uvec2(packFloat2x16(f16vec2(values.xy)), packFloat2x16(f16vec2(values.zw))); }

// A whole eight, which is loaded at once by halves and in two parts else.
uvec2 pack_fp16x4(uvec4 words) { return words.xy; }
uvec4 eight(uvec4 words, uvec4 same) { return words; }
uvec4 eight(uvec2 first, uvec2 second) { return uvec4(first, second); }
uvec4 eight(vec4 first, vec4 second) { return uvec4(pack_fp16x4(first), pack_fp16x4(second)); }

// Of two columns of halves, four steps along k each, the lower or the upper one.
uvec2 lower(uint s, uint t, uint u, uint v) { return uvec2(s & 0xffffu | t << 16, u & 0xffffu | v << 16); }
uvec2 upper(uint s, uint t, uint u, uint v) { return uvec2(s >> 16 | t & 0xffff0000u, u >> 16 | v & 0xffff0000u); }

// How lines (rows of a, columns of b) come to shared memory: `start` at a tile, then for each TILE_K steps `fetch`, which begins to
// load them, and `put`. `fetch_edge` is for the first steps, where these are fewer; the others are 0. Lines over the edge repeat
// the last ones, and are not stored. One load is four values, or a whole eight of halves (`per`). along_k and untransposed are 0 or 1.
// In turn an invocation reads
// - along k: an eight of a line;
// - across k, untransposed: a step of eight lines, which stay neighbours in shared memory;
// - across k, else: eight steps of four lines, which are turned, so that a line's steps are neighbours there.
#define DEFINE_FACTOR(name, load, per, from, tile, tile_lines, along_k, untransposed, lines, of_line, of_step) \
    const uint name##_IDS = (along_k + untransposed != 0u) ? tile_lines * EIGHTS : tile_lines / 4u * EIGHTS; \
    const uint name##_PASSES = name##_IDS > SIZE ? name##_IDS / SIZE : 1u; \
    const uint name##_READS = (along_k + untransposed != 0u) ? 8u / per : 8u; \
    const uint name##_ACROSS = tile_lines / 8u; \
    /* from where a pass puts to where the next one does */ \
    const uint name##_TO_NEXT = along_k != 0u ? SIZE / EIGHTS * LINE : untransposed != 0u ? SIZE / name##_ACROSS * (name##_ACROSS + GAP) : SIZE / (tile_lines / 4u); \
    load name##_read[name##_PASSES * name##_READS]; \
    uint name##_at[name##_PASSES]; \
    uint name##_to; /* where the first are put */ \
    uint name##_next; /* from the first four of an eight to the second */ \
    uvec2 name##_own(uint pass) { /* the first line in the tile, and the eight or the step */ \
        const uint id = (gl_LocalInvocationID.x + pass * SIZE) % name##_IDS; \
        if (along_k != 0u) return uvec2(id / EIGHTS, id % EIGHTS); \
        if (untransposed != 0u) return uvec2(id % name##_ACROSS * 8u, id / name##_ACROSS); \
        return uvec2(id % (tile_lines / 4u) * 4u, id / (tile_lines / 4u)); \
    } \
    void name##_start(uint first, uint line) { \
        const uint last = (lines - 1u) / per * per; \
        const uvec2 put = name##_own(0u); \
        name##_to = untransposed != 0u ? put.y * (name##_ACROSS + GAP) + put.x / 8u : put.x * LINE + put.y; \
        name##_next = untransposed != 0u && line + name##_own(0u).x + per > last ? 0u : 1u; \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uvec2 own = name##_own(i); \
            if (along_k != 0u) { \
                name##_at[i] = (first + min(line + own.x, lines - 1u) * of_line) / per + own.y * (8u / per); \
            } else { \
                name##_at[i] = (first + min(line + own.x, last) + own.y * (untransposed != 0u ? 1u : 8u) * of_step) / per; \
            } \
        } \
    } \
    uint name##_on(uint step, uint j) { /* from the first load at the first step, in loads */ \
        if (along_k != 0u) return step / per + j; \
        return untransposed != 0u ? step * (of_step / per) + j * name##_next : (step + j) * (of_step / per); \
    } \
    void name##_fetch(uint step) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                name##_read[i * name##_READS + j] = from[name##_at[i] + name##_on(step, j)]; \
            } \
        } \
    } \
    void name##_fetch_edge(uint steps) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                const uint own = name##_own(i).y; \
                const uint step = along_k != 0u ? own * 8u + j * per : untransposed != 0u ? own : own * 8u + j; \
                const load read = from[step < steps ? name##_at[i] + name##_on(0u, j) : 0u]; \
                name##_read[i * name##_READS + j] = step < steps ? read : load(0); \
            } \
        } \
    } \
    void name##_put() { \
        if (gl_LocalInvocationID.x >= name##_IDS) return; \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uint to = name##_to + i * name##_TO_NEXT; \
            if (along_k + untransposed != 0u) { \
                tile[to] = eight(name##_read[i * name##_READS], name##_read[i * name##_READS + name##_READS - 1u]); \
            } else { \
                uvec2 r[8]; \
                [[unroll]] for (uint j = 0u; j < 8u; ++j) r[j] = pack_fp16x4(name##_read[i * name##_READS + j % name##_READS]); \
                [[unroll]] for (uint c = 0u; c < 2u; ++c) { \
                    tile[to + c * 2u * LINE] = \
                        uvec4(lower(r[0][c], r[1][c], r[2][c], r[3][c]), lower(r[4][c], r[5][c], r[6][c], r[7][c])); \
                    tile[to + (c * 2u + 1u) * LINE] = \
                        uvec4(upper(r[0][c], r[1][c], r[2][c], r[3][c]), upper(r[4][c], r[5][c], r[6][c], r[7][c])); \
                } \
            } \
        } \
    }
