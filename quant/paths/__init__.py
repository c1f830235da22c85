"""Each engine's arithmetic as a reference in PyTorch: the oracle of the kernels, and what quality is judged with."""
