// Combine a value of the result with an update, in the scatter kernels.
#include "float_math.glsl"
const uint NONE = 0u;
const uint ADD = 1u;
const uint MUL = 2u;
const uint MAX = 3u;
const uint MIN = 4u;

#if KIND == 0
#define VALUE(word) uintBitsToFloat(word)
#define WORD(value) floatBitsToUint(value)
#define LARGER safe_max
#define SMALLER safe_min
#elif KIND == 1
#define VALUE(word) int(word)
#define WORD(value) uint(value)
#define LARGER max
#define SMALLER min
#else
#define VALUE(word) (word)
#define WORD(value) (value)
#define LARGER max
#define SMALLER min
#endif

uint combine(uint old, uint update) {
    if (OP == ADD) return WORD(VALUE(old) + VALUE(update));
    if (OP == MUL) return WORD(VALUE(old) * VALUE(update));
    if (OP == MAX) return WORD(LARGER(VALUE(old), VALUE(update)));
    if (OP == MIN) return WORD(SMALLER(VALUE(old), VALUE(update)));
    return update;
}
