// Fields of the push block of the attention algorithms, after the offsets, depth and heads.
    uint first_tile;
    uint end_tile;
    uint rows; // of q in one batch: all heads that share keys, one behind the other
    uint queries;
    uint keys;
    uint first_column; // of v that this dispatch works on
    uint columns;
    uint q_row; // words from one query to the next, and from one head to the next
    uint q_head;
    uint k_row;
    uint k_head;
    uint v_row;
    uint v_head;
    uint result_row;
    uint result_head;
    uint part_keys;
    uint parts;
    int first_visible; // query i sees the keys i + first_visible .. i + last_visible; with KVCACHE further by the number of keys in use
    int last_visible;
    float scale;
    float softcap;
