// Four words of what one load gives: WORDS is the type of the load.
// WORDS_64: it is of words of 64 bits, as llvmpipe loads lane by lane and word by word, each at the price of many products.
#ifdef WORDS_64
#define WORDS u64vec2
uvec4 words(u64vec2 loaded) { return uvec4(unpackUint2x32(loaded.x), unpackUint2x32(loaded.y)); }
#define READ_WORD(BUFFER, at) words(BUFFER[(at) >> 2u])[(at) & 3u]
#else
#define WORDS uvec4
uvec4 words(uvec4 loaded) { return loaded; }
#define READ_WORD(BUFFER, at) BUFFER[(at) >> 2u][(at) & 3u]
#endif
