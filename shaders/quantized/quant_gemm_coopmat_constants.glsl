// Constants of quant_gemm_coopmat.glsl.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 10) const uint WEIGHTS = 1;
layout(constant_id = 11) const uint GATE = 0;
layout(constant_id = 12) const uint FP16_X = 0;
layout(constant_id = 13) const uint FP16_RESULT = 0;
layout(constant_id = 14) const uint ROTARY = 0; // 1: pairs are half a head's pairs apart; 2: they are neighbours
