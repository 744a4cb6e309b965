"""What micro-kernels and memory traffic cost on a machine."""
