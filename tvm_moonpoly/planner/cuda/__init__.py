"""Plans for CUDA: which micro-kernels compute which part of a product's result.

`spec` is the specification in plain Python, `native` the same as TensorIR for the host.
"""
