"""Wan 2.1's VAE decoder as streaming ONNX graphs of one spatial tile: `checkpoint` opens it, `graphs` builds them,
`tiles` says where the tiles lie, `reference` runs the graphs on a CPU."""
