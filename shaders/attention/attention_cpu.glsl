// Shared by the attention kernels for CPU drivers: the size of a group and the constants.
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SOFTCAP = 0;
layout(constant_id = 4) const uint IS_BIAS = 0;
layout(constant_id = 5) const uint WHOLE = 1;
layout(constant_id = 6) const uint FULLY_MASKED = 0; // the bits of the result of a query that sees no key
layout(constant_id = 7) const uint CHUNK = 0; // cached keys are seen from a multiple of it on; 0: all
#ifdef KVCACHE
layout(constant_id = 8) const uint POSITIONS = 0; // 1: past_len varies; no branch for CPU drivers
#define HAS_POSITIONS (POSITIONS != 0u)
#endif
#include "attention.glsl"
