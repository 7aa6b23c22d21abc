// Four words of what one load gives, or one store takes: WORDS is its type; PAIR is that of two.
// WORDS_64: it is of words of 64 bits, as llvmpipe goes lane by lane and word by word, each at the price of many products; the
// buffer is declared again as single words, for what is no whole four. No invocation may touch a word by both declarations, if it
// writes it: compilers take them for different memory.
// SINGLES, PAIRS: declare a buffer again, as single words, or pairs of them.
#define SINGLES(BINDING, ACCESS, BUFFER) \
    layout(set = 0, binding = BINDING) ACCESS buffer Single_##BUFFER { uint BUFFER##_words[]; };
#define PAIRS(BINDING, ACCESS, BUFFER) \
    layout(set = 0, binding = BINDING) ACCESS buffer Pair_##BUFFER { PAIR BUFFER##_pairs[]; };
#ifdef WORDS_64
#define WORDS u64vec2
#define PAIR uint64_t
uvec2 words(uint64_t loaded) { return unpackUint2x32(loaded); }
uvec4 words(u64vec2 loaded) { return uvec4(words(loaded.x), words(loaded.y)); }
uint64_t stored(uvec2 two) { return packUint2x32(two); }
u64vec2 stored(uvec4 four) { return u64vec2(stored(four.xy), stored(four.zw)); }
#define SINGLE_WORDS(BINDING, ACCESS, BUFFER) SINGLES(BINDING, ACCESS, BUFFER)
#define WORD_OF(BUFFER, four, i) BUFFER##_words[4u * (four) + (i)]
#define PAIR_WORD(BUFFER, at) BUFFER##_words[at]
#define WORD(BUFFER, at) BUFFER##_words[at]
#else
#define WORDS uvec4
#define PAIR uvec2
uvec2 words(uvec2 loaded) { return loaded; }
uvec4 words(uvec4 loaded) { return loaded; }
uvec2 stored(uvec2 two) { return two; }
uvec4 stored(uvec4 four) { return four; }
#define SINGLE_WORDS(BINDING, ACCESS, BUFFER)
#define WORD_OF(BUFFER, four, i) BUFFER[four][i]
#define PAIR_WORD(BUFFER, at) BUFFER[(at) >> 1u][(at) & 1u]
#define WORD(BUFFER, at) BUFFER[(at) >> 2u][(at) & 3u]
#endif
