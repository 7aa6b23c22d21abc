// Products of weights of few bits as steps of programs. Examples: tests/ops/test_recipes.py.
#include "loops/packed/packed.hpp"
#include "loops/told_loop.hpp"

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

void linear_packed(const ToldLoop<PackedLoop>& step, const Operands& given, size_t piece)
{
    float* out = step.result(given) + static_cast<int64_t>(piece) * step.numbers[5];
    step.called(packed_part(step, given, piece), given.get<float>(0), step.numbers[0], out);
}

void linear_rounded(const ToldLoop<RoundedLoop>& step, const Operands& given, size_t piece)
{
    float* out = step.result(given) + static_cast<int64_t>(piece) * step.numbers[5];
    step.called(packed_part(step, given, piece), given.get<Rounded>(0), step.numbers[0], out);
}

// numbers: rows, columns, rows of a piece, words of a rounded row.
void round_rows(const ToldLoop<RoundingLoop>& step, const Operands& given, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t start = static_cast<int64_t>(piece) * told[2];
    step.called(given.get<float>(0) + start * told[1], std::min(told[2], told[0] - start),
                  told[1], reinterpret_cast<Rounded*>(step.result(given) + start * told[3]));
}

const RoundedFormat& format_of(const Told& told)
{
    return rounded_format(told.calls, told.wide ? "" : "plain");
}

} // namespace

std::unique_ptr<Loop> linear_packed_loop(const Told& told)
{
    return told_loop(told, {2, 6, 0}, linear_packed, packed_format(told.calls, told.wide).linear);
}

std::unique_ptr<Loop> linear_rounded_loop(const Told& told)
{
    return told_loop(told, {2, 6, 0}, linear_rounded, format_of(told).linear);
}

std::unique_ptr<Loop> round_rows_loop(const Told& told)
{
    return told_loop(told, {1, 4, 0}, round_rows, format_of(told).round);
}
#else
std::unique_ptr<Loop> linear_packed_loop(const Told&) { throw KeyError("linear_packed"); }
std::unique_ptr<Loop> linear_rounded_loop(const Told&) { throw KeyError("linear_rounded"); }
std::unique_ptr<Loop> round_rows_loop(const Told&) { throw KeyError("round_rows"); }
#endif
