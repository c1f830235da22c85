"""Quantised ONNX graphs become context binaries of a Snapdragon phone's HTP, on a Linux machine, without a phone."""
