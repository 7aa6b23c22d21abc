// Shared by the matmul kernels for CPU drivers: 8 x 8 results of one invocation, kept in registers and stored at the end.
// T4 is four of T. An algorithm has left<i> and right<i>, the two halves of row i.
const uint BLOCK = 8u;

// Written out for each row, as CPU drivers keep indexed arrays in memory and not in registers.
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#define START_SUMS(i, number) \
    T4 left##i = T4(0); \
    T4 right##i = T4(0);
#define KEEP_ROW(i, number) \
    done[2u * number] = left##i; \
    done[2u * number + 1u] = right##i;

// A loop of a count that no compiler knows: drivers take seconds over many stores written out.
void store_block(uint first, uint row, uint column, T4 done[2u * BLOCK]) {
    const uint stores = 2u * min(BLOCK, m - row);
    for (uint i = 0u; i < stores; ++i) store4(first, row + i / 2u, column + i % 2u * 4u, done[i]);
}
