// Shared by the kernels for cooperative matrices: one workgroup of SUBGROUPS_DOWN x SUBGROUPS_ACROSS subgroups computes a tile of TILE_M x TILE_N
// sums of products, each subgroup DOWN x ACROSS cooperative matrices of it.
// Steps of TILE_K go through shared memory in eights, along k or, of a factor that is untransposed, along its lines. They are float16
// with sums in float32 (fp16_operands.glsl fills the tiles), with OF_CODES int8 with sums in int32.
#ifdef OF_CODES
#define FACTOR int8_t
#define VALUE int
#define VALUE4 ivec4
#define EIGHT uvec2
const uint TILE_K = 64u;
const uint GAP = 2u; // eights: matrices begin at whole 16 bytes
#else
#define FACTOR float16_t
#define VALUE float
#define VALUE4 vec4
#define EIGHT uvec4
const uint TILE_K = 32u;
const uint GAP = 1u;
#endif
layout(constant_id = 3) const uint MATRIX_M = 16;
layout(constant_id = 4) const uint MATRIX_N = 16;
layout(constant_id = 5) const uint MATRIX_K = 16;
layout(constant_id = 6) const uint DOWN = 2;
layout(constant_id = 7) const uint ACROSS = 2;
layout(constant_id = 8) const uint SUBGROUPS_DOWN = 2;
layout(constant_id = 9) const uint SUBGROUPS_ACROSS = 2;

const uint OWN_M = DOWN * MATRIX_M;
const uint OWN_N = ACROSS * MATRIX_N;
const uint TILE_M = SUBGROUPS_DOWN * OWN_M;
const uint TILE_N = SUBGROUPS_ACROSS * OWN_N;
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const uint SUBGROUP_SIZE = gl_WorkGroupSize.x / SUBGROUPS;
const uint SIZE = gl_WorkGroupSize.x;
const uint EIGHTS = TILE_K / 8u;
const uint LINE = EIGHTS + GAP; // lines start in different banks
// A factor that is untransposed has its lines beside each other, for each step: a tile of whole eights of lines.
#ifndef A_UNTRANSPOSED
#define A_UNTRANSPOSED 0u
#define B_UNTRANSPOSED 0u
#endif
const uint A_STEP = TILE_M / 8u + GAP;
const uint B_STEP = TILE_N / 8u + GAP;
shared EIGHT a_tile[A_UNTRANSPOSED != 0u ? TILE_K * A_STEP : TILE_M * LINE];
shared EIGHT b_tile[B_UNTRANSPOSED != 0u ? TILE_K * B_STEP : TILE_N * LINE];
shared VALUE done[SUBGROUPS * MATRIX_M * MATRIX_N];

#define SUM coopmat<VALUE, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

SUM sums[DOWN * ACROSS];
// FP16_SUMS: products are summed in float16 for some steps, and these sums in float32.
#ifdef FP16_SUMS
#define FP16_SUM coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
FP16_SUM fp16_sums[DOWN * ACROSS];
#define NEAR_SUMS fp16_sums
#else
#define NEAR_SUMS sums
#endif

void clear_sums() {
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) sums[i] = SUM(0);
#ifdef FP16_SUMS
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) fp16_sums[i] = FP16_SUM(0);
#endif
}

#ifdef FP16_SUMS
void add_fp16_sums() {
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
        sums[i] += SUM(fp16_sums[i]);
        fp16_sums[i] = FP16_SUM(0);
    }
}
#endif

// Where a sum begins, in rows and columns of the tile.
uvec2 own_place() { return uvec2(gl_SubgroupID / SUBGROUPS_ACROSS * OWN_M, gl_SubgroupID % SUBGROUPS_ACROSS * OWN_N); }

// Many sums beside what is loaded for the next step: one depth of matrices after the other, so that Mesa 25 spills no registers on AMD's GPUs.
#ifndef LOADS_MUCH
#define LOADS_MUCH false
#endif
const bool ONE_BY_ONE = OWN_M * OWN_N > 64u * SUBGROUP_SIZE;

// Adds the products of what shared memory holds to the sums of a subgroup, from step s on.
void multiply_depth(uint s) {
    const uvec2 own = own_place();
    coopmat<FACTOR, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> left[DOWN];
    [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
        const uint line = own.x + i * MATRIX_M;
        if (A_UNTRANSPOSED != 0u) coopMatLoad(left[i], a_tile, s * A_STEP + line / 8u, A_STEP, gl_CooperativeMatrixLayoutColumnMajor);
        else coopMatLoad(left[i], a_tile, line * LINE + s / 8u, LINE, gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint j = 0u; j < ACROSS; ++j) {
        coopmat<FACTOR, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> right;
        const uint line = own.y + j * MATRIX_N;
        if (B_UNTRANSPOSED != 0u) coopMatLoad(right, b_tile, s * B_STEP + line / 8u, B_STEP, gl_CooperativeMatrixLayoutRowMajor);
        else coopMatLoad(right, b_tile, line * LINE + s / 8u, LINE, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
            NEAR_SUMS[i * ACROSS + j] = coopMatMulAdd(left[i], right, NEAR_SUMS[i * ACROSS + j]);
        }
    }
}

// Adds the products of what shared memory holds to the sums of a subgroup.
void multiply() {
    if (LOADS_MUCH && ONE_BY_ONE) {
        [[dont_unroll]] for (uint s = 0u; s < TILE_K; s += MATRIX_K) multiply_depth(s);
    } else {
        [[unroll]] for (uint s = 0u; s < TILE_K; s += MATRIX_K) multiply_depth(s);
    }
}

// Store four neighbours of a row of the result; `first` is the argument of store_sums.
void store4(uint first, uint row, uint column, VALUE4 values);

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
        for (uint i = gl_SubgroupInvocationID * 4u; i < MATRIX_M * MATRIX_N; i += SUBGROUP_SIZE * 4u) {
            const VALUE4 values = VALUE4(done[to + i], done[to + i + 1u], done[to + i + 2u], done[to + i + 3u]);
            store4(first, first_row + i / MATRIX_N, first_column + i % MATRIX_N, values);
        }
    }
}
