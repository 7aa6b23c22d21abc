// Philox 4x32-10: four random words from a counter and a key, with integer operations only: the same on every device.
// Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.

uvec4 philox(uvec4 counter, uvec2 key) {
    for (uint round = 0u; round < 10u; ++round) {
        uint high0, low0, high1, low1;
        umulExtended(0xD2511F53u, counter.x, high0, low0);
        umulExtended(0xCD9E8D57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

// Words 4 block to 4 block + 3 of a stream. A seed of one word is as that int in 64 bits.
uvec4 random_words(uint block) {
    const uint low = seed[seed_offset];
    const uint high = SEED_WORDS > 1u ? seed[seed_offset + 1u] : (int(low) < 0 ? 0xffffffffu : 0u);
    return philox(uvec4(block, 0u, stream_low, stream_high), uvec2(low, high));
}
