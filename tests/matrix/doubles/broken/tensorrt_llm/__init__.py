"""A double of the tests: it fails as a package without a CUDA driver does."""

raise ImportError("libcuda.so.1: cannot open shared object file")
