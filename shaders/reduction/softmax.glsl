// Shared by softmax and softmax_masked: all but their bindings.
#include "exp_quad.glsl"
#include "vec4_rows.glsl"
vec4 larger(vec4 left, vec4 right) { return max(left, right); }
vec4 add(vec4 left, vec4 right) { return left + right; }
DEFINE_ROW_TREE(row_max, vec4, larger)
DEFINE_ROW_TREE(row_sum, vec4, add)

#ifdef MASKED
uint mask_word(uint row) {
    uint at = mask_offset;
    for (uint axis = 0u; axis + 1u < mask_rank; ++axis) {
        const uint next = row / mask_sizes[axis];
        at += (row - next * mask_sizes[axis]) * mask_strides[axis];
        row = next;
    }
    return at + row * mask_strides[mask_rank - 1u];
}
vec4 masked(vec4 v, uvec4 words) {
    return ADDS != 0u ? v + uintBitsToFloat(words) : mix(vec4(-INFINITY), v, notEqual(words, uvec4(0u)));
}
#define VALUES(i) masked(x[vec4_at(row, i)], mask[first_mask / 4u + i])
#define VALUE(column) \
    masked(vec4(WORD(x, row.first + (column) * inner)), uvec4(WORD(mask, first_mask + (column) * mask_column))).x
#else
#define VALUES(i) x[vec4_at(row, i)]
#define VALUE(column) WORD(x, row.first + (column) * inner)
#endif

void main() {
    const uint items = ACROSS != 0u ? rows / 4u : rows;
    const uint width = ACROSS != 0u ? inner / 4u : inner; // items side by side
    const uint step = gl_NumWorkGroups.x * rows_of_group();
    for (uint first = gl_WorkGroupID.x * rows_of_group(); first < items; first += step) {
        const uint item = first + row_in_group();
        const uint outer = item / width;
        const uint place = outer * columns * inner + (item - outer * width) * (ACROSS != 0u ? 4u : 1u);
        const Row row = row_of(x_offset + place, columns, USE_VEC4 != 0u ? inner : 0u, item < items);
#ifdef MASKED
        const uint first_mask = mask_word(item);
#endif
        vec4 largest = vec4(-INFINITY); // NaN may be passed over, as it is in the sum
        for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) largest = max(largest, VALUES(i));
#if !VEC4_ONLY
        for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) largest.x = max(largest.x, VALUE(edge_column(row, i)));
#endif
        if (ACROSS == 0u) largest = vec4(max(max(largest.x, largest.y), max(largest.z, largest.w)));
        largest = row_max(largest);
        vec4 sum = vec4(0.0);
        for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) sum += exp_of_negative(VALUES(i) - largest);
#if !VEC4_ONLY
        for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) {
            sum.x += exp_of_negative(VALUE(edge_column(row, i)) - largest.x);
        }
#endif
        if (ACROSS == 0u) sum = vec4((sum.x + sum.y) + (sum.z + sum.w));
        sum = row_sum(sum);
        vec4 log_sum = vec4(0.0);
        if (LOGARITHM != 0u) log_sum = vec4(safe_log(sum.x), safe_log(sum.y), safe_log(sum.z), safe_log(sum.w));
        const vec4 scale = 1.0 / sum;
        // from a word of x to that of the result, and from a vec4: these wrap where it lies in front of x, so each is divided first
        const uint to = result_offset - x_offset;
        const uint to_vec4 = result_offset / 4u - x_offset / 4u;
        for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) {
            const vec4 below = VALUES(i) - largest;
            result[to_vec4 + vec4_at(row, i)] = LOGARITHM != 0u ? below - log_sum : exp_of_negative(below) * scale;
        }
#if !VEC4_ONLY
        for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) {
            const uint column = edge_column(row, i);
            const float below = VALUE(column) - largest.x;
            WORD(result, to + row.first + column * inner) =
                LOGARITHM != 0u ? below - log_sum.x : exp_of_negative(below) * scale.x;
        }
#endif
    }
}
