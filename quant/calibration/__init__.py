"""Largest magnitudes and histograms of every GEMM input along a trajectory, and the scales that follow from them."""
