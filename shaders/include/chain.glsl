// A chain: a small program of elementwise steps on four values at once, one after the other. STEP_i says in bits 0..7 which
// function of chain_ops.glsl, and in bits 8..12, 13..17 and 18..22 which registers are its operands. Registers 0..5 are what
// goes in, 6..11 the words WORD_i, and 12.. the results of the steps; the last step's is the chain's. The constants belong to
// the shader that includes this: STEP_0 to STEP_7 and WORD_0 to WORD_5.
// The runtime writes the body of chain() anew, with calls of what the steps are (vksched/runtime/link.py): from the constants
// alone it takes drivers seconds to find out, and their registers are an array in memory.
#include "chain_ops.glsl"
#include "chain_apply.glsl"

uvec4 chain(uvec4 x0, uvec4 x1, uvec4 x2, uvec4 x3, uvec4 x4, uvec4 x5) {
    uvec4 r[20] = {
        x0, x1, x2, x3, x4, x5,
        uvec4(WORD_0), uvec4(WORD_1), uvec4(WORD_2), uvec4(WORD_3), uvec4(WORD_4), uvec4(WORD_5),
        uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u)
    };
    r[12] = apply(STEP_0 & 255u, r[STEP_0 >> 8 & 31u], r[STEP_0 >> 13 & 31u], r[STEP_0 >> 18 & 31u]);
    r[13] = apply(STEP_1 & 255u, r[STEP_1 >> 8 & 31u], r[STEP_1 >> 13 & 31u], r[STEP_1 >> 18 & 31u]);
    r[14] = apply(STEP_2 & 255u, r[STEP_2 >> 8 & 31u], r[STEP_2 >> 13 & 31u], r[STEP_2 >> 18 & 31u]);
    r[15] = apply(STEP_3 & 255u, r[STEP_3 >> 8 & 31u], r[STEP_3 >> 13 & 31u], r[STEP_3 >> 18 & 31u]);
    r[16] = apply(STEP_4 & 255u, r[STEP_4 >> 8 & 31u], r[STEP_4 >> 13 & 31u], r[STEP_4 >> 18 & 31u]);
    r[17] = apply(STEP_5 & 255u, r[STEP_5 >> 8 & 31u], r[STEP_5 >> 13 & 31u], r[STEP_5 >> 18 & 31u]);
    r[18] = apply(STEP_6 & 255u, r[STEP_6 >> 8 & 31u], r[STEP_6 >> 13 & 31u], r[STEP_6 >> 18 & 31u]);
    r[19] = apply(STEP_7 & 255u, r[STEP_7 >> 8 & 31u], r[STEP_7 >> 13 & 31u], r[STEP_7 >> 18 & 31u]);
    return r[19];
}
