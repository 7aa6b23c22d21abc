// Quantized weights, as vksched/ops/quantized/quant_layout.py lays them out: rows of tiles of 256 values, each a head with scales and
// then the high and low bits of eight runs of 32. One format is defined, as Q4_K. This file has no code: quant_block.glsl reads them.
// HEAD: words of a head. TAIL: those that lie in front of a pair of tiles. LOW, HIGH: bits of codes. ZERO: what is subtracted from them. SIGN_BITS: of words, whose codes are in two's
// complement, those that are turned over to have codes that are not.
// TABLE: codes stand for numbers of a table. SHIFTS: values are scale * code + shift.
// FLOATS: values are floats of 16 bits, in order, without a head.
// SLOW_SHIFTS: for drivers that shift lane by lane (SwiftShader).
// PARTS: of a run, with a scale each. SUMS: products need sums of what they multiply by codes. LOAD_OF_B: what one load reads.
#if defined(F16) || defined(BF16)
#define HEAD 0
#define LOW 16
#define FLOATS
#elif defined(Q8_0)
#define HEAD 4
#define LOW 8
#define ZERO 128
#define SCALES_OF_RUNS
#elif defined(Q4_0)
#define HEAD 4
#define LOW 4
#define ZERO 8
#define SCALES_OF_RUNS
#elif defined(Q4_1)
#define HEAD 8
#define LOW 4
#define SHIFTS
#elif defined(Q5_0)
#define HEAD 4
#define LOW 4
#define HIGH 1
#define ZERO 16
#define SCALES_OF_RUNS
#elif defined(Q5_1)
#define HEAD 8
#define LOW 4
#define HIGH 1
#define SHIFTS
#elif defined(Q2_K)
#define HEAD 6
#define LOW 2
#define SHIFTS
#elif defined(Q3_K)
#define HEAD 4
#define LOW 2
#define HIGH 1
#define ZERO 4
#elif defined(Q4_K)
#define HEAD 4
#define LOW 4
#define SHIFTS
#elif defined(Q5_K)
#define HEAD 4
#define LOW 4
#define HIGH 1
#define SHIFTS
#elif defined(Q6_K)
#define HEAD 6
#define LOW 4
#define HIGH 2
#define ZERO 32
#elif defined(IQ4_NL)
#define HEAD 4
#define LOW 4
#define TABLE
#define SCALES_OF_RUNS
#elif defined(IQ4_XS)
#define HEAD 2
#define LOW 4
#define TABLE
#elif defined(MXFP4)
#define HEAD 2
#define LOW 4
#define TABLE
#endif
#ifndef HIGH
#define HIGH 0
#endif
#ifndef ZERO
#define ZERO 0
#endif
#if defined(Q2_K) || defined(Q3_K) || defined(Q6_K)
#define PARTS 2
#else
#define PARTS 1
#endif
#if defined(SHIFTS) || ZERO > 0
#define SUMS
#endif
#define TAIL (HEAD % 4)
#define LOAD_OF_B WORDS
// VIEWS: declares a weight again, as single words, and as pairs where a run has two words of a kind, or a head has a tail.
#if LOW == 2 || HIGH == 2 || TAIL > 0
#define HAS_PAIRS
#define VIEWS(BINDING, BUFFER) SINGLES(BINDING, readonly, BUFFER) PAIRS(BINDING, readonly, BUFFER)
#else
#define VIEWS(BINDING, BUFFER) SINGLES(BINDING, readonly, BUFFER)
#endif
// Codes of two or four bits are taken apart by masks alone where a shader defines IN_PLACE before.
#if defined(IN_PLACE) && (LOW > 4 || HIGH > 0)
#undef IN_PLACE
#endif
#ifdef Q8_0
#define SIGN_BITS 0x80808080u
#elif defined(Q4_0) && defined(IN_PLACE)
#define SIGN_BITS 0x88888888u
#elif defined(Q4_0)
#define SIGN_BITS 0x08080808u
#endif
