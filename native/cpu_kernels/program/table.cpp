// What loops programs may have, by name.
#include "cpu_kernels/operands.hpp"

#include <map>

namespace {

using Maker = std::unique_ptr<Loop> (*)(const Told&);

const std::map<std::string, Maker> makers{
    {"attention", attention_loop},
    {"cached_attention", cached_attention_loop},
    {"chain", chain_loop},
    {"concat", concat_loop},
    {"conv", conv_loop},
    {"conv_transpose", transpose_loop},
    {"copy", copy_loop},
    {"gather", gather_loop},
    {"linear_packed", linear_packed_loop},
    {"linear_rounded", linear_rounded_loop},
    {"matmul", matmul_loop},
    {"norm", norm_loop},
    {"pool", pool_loop},
    {"product", product_loop},
    {"recurrent", recurrent_loop},
    {"reduce", reduce_loop},
    {"rotary_embedding", rotary_loop},
    {"round_rows", round_rows_loop},
    {"softmax", softmax_loop},
    {"write_rows", write_rows_loop},
};

} // namespace

std::unique_ptr<Loop> loop_named(const std::string& name, const Told& told)
{
    const auto found = makers.find(name);
    if (found == makers.end())
        throw KeyError(name);
    return found->second(told);
}
