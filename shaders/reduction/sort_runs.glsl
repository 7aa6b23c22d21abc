// Sorted runs in scratch memory: keys, then columns, (2, rows, row_words). Of each run only the first `keep` values are kept.

uint run_words(uint width, uint keep) { return min(width, keep); }

uint run_count(uint columns, uint width) { return (columns + width - 1u) / width; }

// The last run may be short, so a row never needs more words than it has columns.
uint row_words(uint columns, uint width, uint keep) {
    return min(run_count(columns, width) * run_words(width, keep), columns);
}
