// row_word(i), word_of_result(i) and write_word(i, word) of the state that a workgroup updates.
#define FOR_OTHERS(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
#define READ_ROW(n) if (gl_WorkGroupID.y == n) return rows##n[rows##n##_offset + i];
#define READ_RESULT(n) if (gl_WorkGroupID.y == n) return result##n[result##n##_offset + i];
#define WRITE_RESULT(n) if (gl_WorkGroupID.y == n) result##n[result##n##_offset + i] = word;

uint row_word(uint i) {
    FOR_OTHERS(READ_ROW)
    return rows10[rows10_offset + i];
}

uint word_of_result(uint i) {
    FOR_OTHERS(READ_RESULT)
    return result10[result10_offset + i];
}

void write_word(uint i, uint word) {
    FOR_OTHERS(WRITE_RESULT)
    WRITE_RESULT(10)
}
