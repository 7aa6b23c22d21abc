// Up to three weights of a merged product: the one that is read, and its blocks.
uint weight; // the one that is read, the same for all of a group
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
