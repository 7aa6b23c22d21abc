"""Speed: cases on every device beside peers, in rounds of one run; see `vksched bench`."""
