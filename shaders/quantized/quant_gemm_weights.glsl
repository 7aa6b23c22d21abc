// The weights of a product of many rows, and their tiles.
#include "merged_weights.glsl"
#include "quant_half_run.glsl"

uint start_of(uint which) { return which == 0u ? b_offset : which == 1u ? second_offset : third_offset; }

const uint PARTS_OF_TILE = GATE != 0u ? 2u : 1u; // weights whose columns a tile has

// Finds the weight of a tile, and returns the first column of the tile in it.
uint find_weight(uint tile) {
    uint column = tile * (TILE_N / PARTS_OF_TILE);
    weight = 0u;
    if (GATE == 0u) {
        // the tiles of a weight are behind those of the weight before
        [[unroll]] for (uint i = 0u; i + 1u < WEIGHTS; ++i) {
            const uint tiles = (sizes[i] + TILE_N - 1u) / TILE_N * TILE_N;
            if (weight == i && column >= tiles) {
                column -= tiles;
                weight = i + 1u;
            }
        }
    }
    return column;
}
