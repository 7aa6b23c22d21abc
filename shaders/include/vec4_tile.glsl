// Tiles of products in shared memory, in vec4s: one workgroup computes TILE_M x TILE_N results, each invocation DOWN x ACROSS blocks of
// 4 x 4 of them, which lie apart. vec4_multiply.glsl multiplies them. TILE4: four elements of a tile; SUM4: four sums.
layout(constant_id = 3) const uint TILE_M = 128;
layout(constant_id = 4) const uint TILE_N = 64;
layout(constant_id = 5) const uint DOWN = 2;
layout(constant_id = 6) const uint ACROSS = 2;

const uint TILE_K = 8u;
const uint SIZE = gl_WorkGroupSize.x;
const uint BLOCKS_DOWN = TILE_M / 4u / DOWN;
const uint BLOCKS_ACROSS = TILE_N / 4u / ACROSS;
const uint WIDE = 8u; // blocks across of the invocations that follow each other, so that a subgroup reads few others
const uint SUMS = DOWN * 4u * ACROSS;
SUM4 sums[SUMS];

// How lines (rows of a, columns of b) come to shared memory, for each step along k in vec4s of lines: `start` at a tile, then for each
// TILE_K steps `fetch`, which begins to load them, and `put` into one of two tiles. `fetch_edge` is for the first steps, where these
// are fewer; the others are 0. Lines over the edge repeat the last one, and are not stored. A gap behind every four steps keeps what
// is read along k, and so written step by step, in different banks. With UNALIGNED the four elements are loaded one by one, as lines are
// no vec4s; else `load` is what one load of them gives.
#ifdef UNALIGNED
#define PER_LOAD 1u
#define READ_FACTOR(name, from, pass, on, along_k) \
    vec4(from[name##_at[pass] + on], from[name##_at[pass] + on + min(1u, name##_left[pass])], \
         from[name##_at[pass] + on + min(2u, name##_left[pass])], from[name##_at[pass] + on + min(3u, name##_left[pass])])
#define FIRST_LINE(lines) (lines - 1u)
#define FETCH_EDGE(name, load, from, i, along_k, steps) { \
    const uint own = name##_own(i).y; \
    [[unroll]] for (uint j = 0u; j < 4u; ++j) { \
        const bool inside = own + (along_k ? j : 0u) < steps; \
        const float value = from[inside ? name##_at[i] + min(j, name##_left[i]) : 0u]; \
        name##_read[i][j] = inside ? value : 0.0; \
    } }
#else
#define PER_LOAD 4u
#define READ_FACTOR(name, from, pass, on, along_k) from[name##_at[pass] + on]
#define FIRST_LINE(lines) ((lines - 1u) / 4u * 4u)
#define FETCH_EDGE(name, load, from, i, along_k, steps) { \
    const bool inside = name##_own(i).y < steps; \
    const load value = from[inside ? name##_at[i] : 0u]; \
    name##_read[i] = inside ? value : load(0); }
#endif
#define DEFINE_FACTOR(name, load, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    const uint name##_IDS = tile_lines * TILE_K / 4u; \
    const uint name##_PASSES = name##_IDS > SIZE ? name##_IDS / SIZE : 1u; \
    const uint name##_GAP = along_k ? 4u : 0u; \
    const uint name##_TILE = TILE_K * tile_lines / 4u + name##_GAP; \
    shared TILE4 tile[2u * name##_TILE]; \
    load name##_read[name##_PASSES]; \
    uint name##_at[name##_PASSES]; \
    uint name##_left[name##_PASSES]; /* behind the first of four elements, of UNALIGNED */ \
    uint name##_of(uint step) { return step * (tile_lines / 4u) + step / 4u * name##_GAP; } \
    uvec2 name##_own(uint pass) { /* the first line in the tile, and the step */ \
        const uint id = (gl_LocalInvocationID.x + pass * SIZE) % name##_IDS; \
        return along_k ? uvec2(id / (TILE_K / 4u), id % (TILE_K / 4u) * 4u) \
                       : uvec2(id % (tile_lines / 4u) * 4u, id / (tile_lines / 4u)); \
    } \
    void name##_start(uint first, uint line) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uvec2 own = name##_own(i); \
            const uint begin = min(line + own.x, along_k ? lines - 1u : FIRST_LINE(lines)); \
            name##_at[i] = (first + (along_k ? begin * of_line + own.y : begin + own.y * of_step)) / PER_LOAD; \
            name##_left[i] = along_k ? 3u : lines - 1u - begin; \
        } \
    } \
    void name##_fetch(uint step) { \
        const uint on = (along_k ? step : step * of_step) / PER_LOAD; \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) name##_read[i] = READ_FACTOR(name, from, i, on, along_k); \
    } \
    void name##_fetch_edge(uint steps) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            FETCH_EDGE(name, load, from, i, along_k, steps) \
        } \
    } \
    void name##_put(uint which) { \
        if (name##_IDS < SIZE && gl_LocalInvocationID.x >= name##_IDS) return; \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uvec2 own = name##_own(i); \
            const uint to = which * name##_TILE + name##_of(own.y) + own.x / 4u; \
            const TILE4 values = TILE4(as_vec4(name##_read[i])); \
            if (along_k) { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) tile[to + j * (tile_lines / 4u)][own.x % 4u] = values[j]; \
            } else { \
                tile[to] = values; \
            } \
        } \
    }

