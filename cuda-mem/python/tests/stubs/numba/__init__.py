"""What `cuda_mem.numba` uses of Numba, for tests without it."""
