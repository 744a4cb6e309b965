"""Correctness and speed on an NVIDIA GPU, by a bundle that needs no compiler there.

``python -m bench.gpu --gpu nvidia-h200`` makes the bundle: the operators with machine code for that
GPU, TVM's runtime, and ``run.py``, which needs Python, numpy and a driver on the machine with the
GPU. There ``python run.py`` writes ``results.json``; ``python -m bench.gpu.page results.json``
makes a page of it.

`bundle`, `contents`, `cases`, `baseline`, `packages` run here; `run` and the modules of
`runner` run there, and import nothing but the standard library, numpy, tvm_ffi and torch.
"""
