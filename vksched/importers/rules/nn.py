"""Rules for convolution, pooling and normalisation."""
