"""Speed: cases on every device beside baselines, in rounds of one run; see `vksched bench`."""
