"""C, C++ and OpenCL sources of the device runtime; the Python side only locates and builds them."""
