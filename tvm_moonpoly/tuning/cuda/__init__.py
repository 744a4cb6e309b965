"""The offline stage for CUDA: so far the choice of an elite set by computed costs."""
