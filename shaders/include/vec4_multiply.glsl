// Multiplies tiles of vec4_tile.glsl, whose operands are `rows` in a_tile and `columns` in b_tile.

void clear_sums() {
    [[unroll]] for (uint i = 0u; i < SUMS; ++i) sums[i] = SUM4(0);
}

// The first of an invocation's blocks, down and across.
uvec2 own_block() {
    const uint id = gl_LocalInvocationID.x;
    return uvec2(id / WIDE % BLOCKS_DOWN, id % WIDE + id / (WIDE * BLOCKS_DOWN) * WIDE);
}

void multiply(uint which) {
    const uvec2 from = own_block() + which * uvec2(rows_TILE, columns_TILE);
    [[unroll]] for (uint s = 0u; s < TILE_K; ++s) {
        TILE4 left[DOWN], right[ACROSS];
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) left[i] = a_tile[from.x + rows_of(s) + i * BLOCKS_DOWN];
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) right[j] = b_tile[from.y + columns_of(s) + j * BLOCKS_ACROSS];
        [[unroll]] for (uint i = 0u; i < SUMS; ++i) {
            const uint row = i / ACROSS;
            sums[i] += SUM4(left[row / 4u][row % 4u]) * SUM4(right[i % ACROSS]);
        }
    }
}

// A loop that is not written out, as the epilogue is long; the index of each sum is known, so that they stay in registers.
void store_sums(uint first, uint row, uint column) {
    const uvec2 own = own_block() * 4u;
    [[dont_unroll]] for (uint part = 0u; part < SUMS; ++part) {
        SUM4 sum = SUM4(0);
        [[unroll]] for (uint i = 0u; i < SUMS; ++i) {
            if (i == part) sum = sums[i];
        }
        const uint block = part / ACROSS / 4u;
        const uint to_row = row + own.x + block * 4u * BLOCKS_DOWN + part / ACROSS % 4u;
        const uint to_column = column + own.y + part % ACROSS * 4u * BLOCKS_ACROSS;
        store_sum(first, to_row, to_column, T4(sum));
    }
}
