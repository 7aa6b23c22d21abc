// One round of every chain of ceiling_fma: a macro, as drivers for CPUs unroll no loops over arrays.
#define FMA(s) s = fma(s, m, c);
#if CHAINS > 4
#define ROUND FMA(s0) FMA(s1) FMA(s2) FMA(s3) FMA(s4) FMA(s5) FMA(s6) FMA(s7)
#elif CHAINS > 2
#define ROUND FMA(s0) FMA(s1) FMA(s2) FMA(s3)
#else
#define ROUND FMA(s0) FMA(s1)
#endif
