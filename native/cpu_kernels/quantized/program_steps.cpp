// Matmul of quantized weights: loops of native programs. Examples:
// tests/ops/native/test_native_programs.py.
#include "cpu_kernels/quantized/quant_matmul.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

// Return the rows of a weight that a piece computes. int_params: rows of x, columns, rows of the
// weight, words of a row, has a bias, weight rows of a piece.
template <class Callee>
QuantMatmul weight_rows(const ParamLoop<Callee>& loop, const Operands& operands, size_t piece)
{
    const int64_t* params = loop.int_params.data();
    const int64_t start = static_cast<int64_t>(piece) * params[5];
    QuantMatmul part{};
    part.words = operands.get<uint32_t>(1) + start * params[3];
    part.rows = std::min(params[5], params[2] - start);
    part.row_words = params[3];
    part.columns = params[1];
    part.bias = params[4] ? operands.get<float>(2) + start : nullptr;
    part.out_stride = params[2];
    return part;
}

// The kernel of a loop, and its format.
struct QuantCallee {
    QuantKernel linear;
    const QuantFormat* format;
};
struct Q8Callee {
    Q8MatmulKernel linear;
    const Q8Format* format;
};

void quantized_linear(const ParamLoop<QuantCallee>& loop, const Operands& operands, size_t piece)
{
    float* out = loop.result(operands) + static_cast<int64_t>(piece) * loop.int_params[5];
    loop.callee.linear(weight_rows(loop, operands, piece), operands.get<float>(0),
                       loop.int_params[0], out);
}

void quantized_linear_q8(const ParamLoop<Q8Callee>& loop, const Operands& operands, size_t piece)
{
    float* out = loop.result(operands) + static_cast<int64_t>(piece) * loop.int_params[5];
    loop.callee.linear(weight_rows(loop, operands, piece), operands.get<Q8Tile>(0),
                       loop.int_params[0], out);
}

// int_params: rows, columns, rows of a piece, words of a Q8 row.
void quantize_rows_q8(const ParamLoop<QuantizeQ8Kernel>& loop, const Operands& operands,
                      size_t piece)
{
    const int64_t* params = loop.int_params.data();
    const int64_t start = static_cast<int64_t>(piece) * params[2];
    loop.callee(operands.get<float>(0) + start * params[1], std::min(params[2], params[0] - start),
                  params[1], reinterpret_cast<Q8Tile*>(loop.result(operands) + start * params[3]));
}

// Check that pieces of `rows_per_piece` rows cover all rows.
void require_pieces(int64_t pieces, int64_t rows_per_piece, int64_t rows)
{
    require(rows_per_piece > 0 && rows > 0
                && pieces == rows / rows_per_piece + (rows % rows_per_piece != 0),
            "expected pieces of all rows");
}

// Add the extents of a matmul, except for x.
template <class Callee, class Format>
void matmul_extents(const ParamLoop<Callee>& loop, const Format& format, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    constexpr int64_t limit = int64_t{1} << 40;
    require(params[1] > 0 && params[1] < limit && params[1] % RUN == 0
                && params[3] == int64_t(row_words(params[1], format.tile_words, format.low_bits))
                && loop.last == (params[4] ? 3u : 2u),
            "expected rows of whole runs, and a slot for each operand and the result");
    require_pieces(loop.pieces, params[5], params[2]);
    extents.add_dense(1, 4, {params[2], params[3]});
    extents.add_dense(2, 4, {params[4] ? params[2] : 0});
    extents.add_dense(loop.last, 4, {params[0], params[2]});
}

void quantized_linear_extents(const ParamLoop<QuantCallee>& loop, Extents& extents)
{
    matmul_extents(loop, *loop.callee.format, extents);
    extents.add_dense(0, 4, {loop.int_params[0], loop.int_params[1]});
}

void quantized_linear_q8_extents(const ParamLoop<Q8Callee>& loop, Extents& extents)
{
    matmul_extents(loop, *loop.callee.format, extents);
    const int64_t tiles = (loop.int_params[1] + TILE - 1) / TILE;
    extents.add_dense(0, 4, {loop.int_params[0], tiles, Q8_TILE_WORDS});
}

void quantize_rows_q8_extents(const ParamLoop<QuantizeQ8Kernel>& loop, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    constexpr int64_t limit = int64_t{1} << 40;
    require(params[1] > 0 && params[1] < limit && params[1] % RUN == 0
                && params[3] == int64_t((params[1] + TILE - 1) / TILE * Q8_TILE_WORDS),
            "expected rows of whole runs, and the words of their tiles");
    require_pieces(loop.pieces, params[2], params[0]);
    extents.add_dense(0, 4, {params[0], params[1]});
    extents.add_dense(1, 4, {params[0], params[3]});
}

const Q8Format& format_of(const LoopParams& params)
{
    return q8_format(params.callee, params.wide ? "" : "baseline");
}

} // namespace

std::unique_ptr<Loop> quantized_linear_loop(const LoopParams& params)
{
    const QuantFormat& format = quant_format(params.callee, params.wide);
    return param_loop<QuantCallee>(params, {2, 6, 0}, quantized_linear, quantized_linear_extents,
                                   {format.linear, &format});
}

std::unique_ptr<Loop> quantized_linear_q8_loop(const LoopParams& params)
{
    const Q8Format& format = format_of(params);
    return param_loop<Q8Callee>(params, {2, 6, 0}, quantized_linear_q8, quantized_linear_q8_extents,
                               {format.linear, &format});
}

std::unique_ptr<Loop> quantize_rows_q8_loop(const LoopParams& params)
{
    return param_loop(params, {1, 4, 0}, quantize_rows_q8, quantize_rows_q8_extents,
                      format_of(params).quantize);
}
#else
std::unique_ptr<Loop> quantized_linear_loop(const LoopParams&)
{
    throw KeyError("quantized_linear");
}
std::unique_ptr<Loop> quantized_linear_q8_loop(const LoopParams&)
{
    throw KeyError("quantized_linear_q8");
}
std::unique_ptr<Loop> quantize_rows_q8_loop(const LoopParams&)
{
    throw KeyError("quantize_rows_q8");
}
#endif
