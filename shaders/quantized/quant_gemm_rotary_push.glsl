// Fields of the push block for rotary embedding.
    uint rotations[3]; // columns of each weight with rotary embedding
    uint head_size;
    uint head_step; // from a head of results to the next
    uint rotary_pairs;
