"""The host shim: compiles the Metal kernels of this folder as C++, to check and run them without a Mac."""
