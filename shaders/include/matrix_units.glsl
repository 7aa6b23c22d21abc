// What kernels for matrix units share: one group of SUBGROUPS_DOWN x SUBGROUPS_ACROSS subgroups computes a tile of TILE_M x TILE_N
// sums of products, each subgroup DOWN x ACROSS cooperative matrices of it.
// Steps of TILE_K go through shared memory as float16, along k in any case: both factors are read from there in whole words.
layout(constant_id = 5) const uint MATRIX_M = 16;
layout(constant_id = 6) const uint MATRIX_N = 16;
layout(constant_id = 7) const uint MATRIX_K = 16;
layout(constant_id = 8) const uint DOWN = 2;
layout(constant_id = 9) const uint ACROSS = 2;
layout(constant_id = 10) const uint SUBGROUPS_DOWN = 2;
layout(constant_id = 11) const uint SUBGROUPS_ACROSS = 2;

const uint TILE_K = 32u;
const uint OWN_M = DOWN * MATRIX_M;
const uint OWN_N = ACROSS * MATRIX_N;
const uint TILE_M = SUBGROUPS_DOWN * OWN_M;
const uint TILE_N = SUBGROUPS_ACROSS * OWN_N;
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const uint LANES = gl_WorkGroupSize.x / SUBGROUPS;
const uint SIZE = gl_WorkGroupSize.x;
const uint EIGHTS = TILE_K / 8u;
const uint LINE = EIGHTS + 1u; // eights of float16 along k, one more so that lines start in different banks
shared uvec4 a_tile[TILE_M * LINE];
shared uvec4 b_tile[TILE_N * LINE];
shared float done[SUBGROUPS * MATRIX_M * MATRIX_N];

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

#define SUM coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

SUM sums[DOWN * ACROSS];

void clear_sums() {
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) sums[i] = SUM(0.0);
}

// Where a sum begins, in rows and columns of the tile.
uvec2 own_place() { return uvec2(gl_SubgroupID / SUBGROUPS_ACROSS * OWN_M, gl_SubgroupID % SUBGROUPS_ACROSS * OWN_N); }

// Adds the products of what shared memory holds to the sums of a subgroup.
void multiply() {
    const uvec2 own = own_place();
    [[unroll]] for (uint s = 0u; s < TILE_K; s += MATRIX_K) {
        coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> left[DOWN];
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
            const uint from = (own.x + i * MATRIX_M) * LINE + s / 8u;
            coopMatLoad(left[i], a_tile, from, LINE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> right;
            const uint from = (own.y + j * MATRIX_N) * LINE + s / 8u;
            coopMatLoad(right, b_tile, from, LINE, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
                sums[i * ACROSS + j] = coopMatMulAdd(left[i], right, sums[i * ACROSS + j]);
            }
        }
    }
}

// What a kernel does with four neighbours of a row of the result; `first` is what it gave store_sums.
void store4(uint first, uint row, uint column, vec4 values);

// Stores the sums of a tile that begins at `row` and `column`.
void store_sums(uint first, uint row, uint column) {
    const uvec2 own = own_place();
    // One matrix of each subgroup after the other, in a loop that is not written out, as the epilogue is long.
    const uint to = gl_SubgroupID * MATRIX_M * MATRIX_N;
    [[dont_unroll]] for (uint part = 0u; part < DOWN * ACROSS; ++part) {
        barrier(); // the one before has been read
        [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
            if (i == part) coopMatStore(sums[i], done, to, MATRIX_N, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        const uint first_row = row + own.x + part / ACROSS * MATRIX_M;
        const uint first_column = column + own.y + part % ACROSS * MATRIX_N;
        for (uint i = gl_SubgroupInvocationID * 4u; i < MATRIX_M * MATRIX_N; i += LANES * 4u) {
            const vec4 values = vec4(done[to + i], done[to + i + 1u], done[to + i + 2u], done[to + i + 3u]);
            store4(first, first_row + i / MATRIX_N, first_column + i % MATRIX_N, values);
        }
    }
}
