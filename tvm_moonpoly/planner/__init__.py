"""The planner: how an operator is assembled from micro-kernels for the shape at hand."""
