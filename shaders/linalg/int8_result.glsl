// The first word of a row of results: rows of a pass are windows of all images, from first_row on.
uint result_of(uint row) {
    const uint window = first_row + row;
    const uint image = window / places;
    return result_offset + result_first + image * image_step + (window - image * places) * row_step;
}
