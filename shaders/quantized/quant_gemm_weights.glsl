// Up to three weights: the one that is read, its blocks, and its tiles.
uint weight; // the one that is read

LOAD_OF_B unit_of_b(uint unit) {
    if (WEIGHTS > 1u && weight == 1u) return second[unit];
    if (WEIGHTS > 2u && weight == 2u) return third[unit];
    return b[unit];
}
#ifdef HAS_PAIRS
PAIR pair_of_b(uint pair) {
    if (WEIGHTS > 1u && weight == 1u) return second_pairs[pair];
    if (WEIGHTS > 2u && weight == 2u) return third_pairs[pair];
    return b_pairs[pair];
}
#endif
uint word_of_b(uint at) {
    if (WEIGHTS > 1u && weight == 1u) return second_words[at];
    if (WEIGHTS > 2u && weight == 2u) return third_words[at];
    return b_words[at];
}
#define UNIT_OF_B(unit) unit_of_b(unit)
#define PAIR_OF_B(pair) pair_of_b(pair)
#define WORD_OF_B(at) word_of_b(at)
#include "quant_block.glsl"
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
