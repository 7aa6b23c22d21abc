// Fields of the push block of dynamic_update_slice_fp16.glsl, after the offsets.
    uint count;
    uint each;
    uint slices;
    uint inner;
    uint many;
    uint size;
    uint shared_slices;
    uint slots; // 0: slices stay where they are
