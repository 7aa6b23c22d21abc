"""Samples of convolution, pooling and resampling ops."""
