// Where the rows of q, of keys and of values lie. PLACE: as attention_keys.glsl has it. slot_of(batch): where the keys of a batch are.

// Rows lie by heads, (heads, length, size), or by length, (length, heads, size): the larger stride spans the other axis.
uint place_row(uint offset, uint batch, uint row, uint row_stride, uint head_stride) {
    const uint share = rows / queries;
    const uint head = batch % heads * share + row / queries;
    const uint whole = max(row_stride * queries, head_stride * heads * share);
    return offset + batch / heads * whole + head * head_stride + row % queries * row_stride;
}

// Where the first key of a batch lies, or its first value.
uint place_keys(uint offset, uint batch, uint row_stride, uint head_stride) {
    return PLACE(offset) + slot_of(batch) * max(row_stride * keys, head_stride * heads) + batch % heads * head_stride;
}
