"""Ops over windows of an image: convolutions, pools, resize, samples."""
