// The loops of native programs by name.
#include "cpu_kernels/operands.hpp"

#include <map>

namespace {

using LoopFactory = std::unique_ptr<Loop> (*)(const LoopParams&);

const std::map<std::string, LoopFactory> factories{
    {"attention", attention_loop},
    {"attention_with_kvcache", attention_with_kvcache_loop},
    {"fused_elementwise", fused_elementwise_loop},
    {"concat", concat_loop},
    {"conv", conv_loop},
    {"conv_transpose", conv_transpose_loop},
    {"copy", copy_loop},
    {"gather", gather_loop},
    {"quantized_linear", quantized_linear_loop},
    {"quantized_linear_q8", quantized_linear_q8_loop},
    {"matmul", matmul_loop},
    {"norm", norm_loop},
    {"pool", pool_loop},
    {"gemm", gemm_loop},
    {"rnn_scan", rnn_scan_loop},
    {"reduce", reduce_loop},
    {"rotary_embedding", rotary_loop},
    {"quantize_rows_q8", quantize_rows_q8_loop},
    {"softmax", softmax_loop},
    {"ssm_scan", ssm_scan_loop},
    {"dynamic_update_slice", dynamic_update_slice_loop},
};

} // namespace

std::unique_ptr<Loop> make_loop(const std::string& name, const LoopParams& params)
{
    const auto entry = factories.find(name);
    if (entry == factories.end())
        throw KeyError(name);
    return entry->second(params);
}
