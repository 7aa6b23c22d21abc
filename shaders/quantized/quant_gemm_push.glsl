// Fields of the push block of products of many rows by quantized weights, after the offsets.
    uint m;
    uint k;
    uint sizes[3]; // rows of each weight
    uint begins[3]; // where its results begin
    uint strides[3]; // from a row of them to the next
    uint b_column; // words of a row of a weight
    uint has_bias;
