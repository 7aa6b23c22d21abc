// Products of weights of few bits as steps of programs. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/quantized/quant_matmul.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>

#ifdef HAS_VECTORS
namespace {

// Rows of a weight of few bits that a piece has. numbers: rows of x, columns, rows of the weight, words
// of a row, has a bias, rows of a piece.
template <class Called>
Packed packed_part(const ToldLoop<Called>& step, const Operands& given, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t start = static_cast<int64_t>(piece) * told[5];
    Packed part{};
    part.words = given.get<uint32_t>(1) + start * told[3];
    part.rows = std::min(told[5], told[2] - start);
    part.row_words = told[3];
    part.columns = told[1];
    part.bias = told[4] ? given.get<float>(2) + start : nullptr;
    part.out_row = told[2];
    return part;
}

// What products call, and of which format.
struct Packing {
    PackedLoop linear;
    const PackedFormat* format;
};
struct Rounding {
    RoundedLoop linear;
    const RoundedFormat* format;
};

void linear_packed(const ToldLoop<Packing>& step, const Operands& given, size_t piece)
{
    float* out = step.result(given) + static_cast<int64_t>(piece) * step.numbers[5];
    step.called.linear(packed_part(step, given, piece), given.get<float>(0), step.numbers[0], out);
}

void linear_rounded(const ToldLoop<Rounding>& step, const Operands& given, size_t piece)
{
    float* out = step.result(given) + static_cast<int64_t>(piece) * step.numbers[5];
    step.called.linear(packed_part(step, given, piece), given.get<Rounded>(0), step.numbers[0], out);
}

// numbers: rows, columns, rows of a piece, words of a rounded row.
void round_rows(const ToldLoop<RoundingLoop>& step, const Operands& given, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t start = static_cast<int64_t>(piece) * told[2];
    step.called(given.get<float>(0) + start * told[1], std::min(told[2], told[0] - start),
                  told[1], reinterpret_cast<Rounded*>(step.result(given) + start * told[3]));
}

// Pieces of so many rows that are all of them.
void require_pieces(int64_t pieces, int64_t each, int64_t rows)
{
    require(each > 0 && rows > 0 && pieces == rows / each + (rows % each != 0),
            "expected pieces of all rows");
}

// What a product reads but x, and writes.
template <class Called, class Format>
void product_reach(const ToldLoop<Called>& step, const Format& format, Extents& to)
{
    const int64_t* told = step.numbers.data();
    constexpr int64_t far = int64_t{1} << 40;
    require(told[1] > 0 && told[1] < far && told[1] % RUN == 0
                && told[3] == int64_t(row_words(told[1], format.tile_words, format.low))
                && step.last == (told[4] ? 3u : 2u),
            "expected rows of whole runs, and a slot for each operand and the result");
    require_pieces(step.pieces, told[5], told[2]);
    to.all(1, 4, {told[2], told[3]});
    to.all(2, 4, {told[4] ? told[2] : 0});
    to.all(step.last, 4, {told[0], told[2]});
}

void packed_reach(const ToldLoop<Packing>& step, Extents& to)
{
    product_reach(step, *step.called.format, to);
    to.all(0, 4, {step.numbers[0], step.numbers[1]});
}

void rounded_reach(const ToldLoop<Rounding>& step, Extents& to)
{
    product_reach(step, *step.called.format, to);
    const int64_t tiles = (step.numbers[1] + TILE - 1) / TILE;
    to.all(0, 4, {step.numbers[0], tiles, ROUNDED_WORDS});
}

void round_reach(const ToldLoop<RoundingLoop>& step, Extents& to)
{
    const int64_t* told = step.numbers.data();
    constexpr int64_t far = int64_t{1} << 40;
    require(told[1] > 0 && told[1] < far && told[1] % RUN == 0
                && told[3] == int64_t((told[1] + TILE - 1) / TILE * ROUNDED_WORDS),
            "expected rows of whole runs, and the words of their tiles");
    require_pieces(step.pieces, told[2], told[0]);
    to.all(0, 4, {told[0], told[1]});
    to.all(1, 4, {told[0], told[3]});
}

const RoundedFormat& format_of(const Told& told)
{
    return rounded_format(told.calls, told.wide ? "" : "plain");
}

} // namespace

std::unique_ptr<Loop> linear_packed_loop(const Told& told)
{
    const PackedFormat& format = packed_format(told.calls, told.wide);
    return told_loop<Packing>(told, {2, 6, 0}, linear_packed, packed_reach, {format.linear, &format});
}

std::unique_ptr<Loop> linear_rounded_loop(const Told& told)
{
    const RoundedFormat& format = format_of(told);
    return told_loop<Rounding>(told, {2, 6, 0}, linear_rounded, rounded_reach,
                               {format.linear, &format});
}

std::unique_ptr<Loop> round_rows_loop(const Told& told)
{
    return told_loop(told, {1, 4, 0}, round_rows, round_reach, format_of(told).round);
}
#else
std::unique_ptr<Loop> linear_packed_loop(const Told&) { throw KeyError("linear_packed"); }
std::unique_ptr<Loop> linear_rounded_loop(const Told&) { throw KeyError("linear_rounded"); }
std::unique_ptr<Loop> round_rows_loop(const Told&) { throw KeyError("round_rows"); }
#endif
