"""Quantised ONNX graphs become context binaries, and run on hosted phones, with Qualcomm AI Hub: never tried for real.

Nothing in this package has run against the real service: no token was at hand when it was written. It was written
against the source of the official client, qai-hub 0.56, and is tested against a local server that speaks the client's
protocol (`tests/exporters/aihub/stand_in.py`).
"""
