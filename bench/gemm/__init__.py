"""Speed of dynamic-shape matrix products against the libraries that people use today.

``python -m bench.gemm --quick --json out.json`` runs every library in one process at one thread, in
interleaved rounds, and reports medians of paired ratios, the fraction of the FMA peak that was
measured in the same rounds, and every shape on which a peer is faster.

What is compared with what. A call of ours is timed in two ways:

* ``moonpoly``: the operator library's packed function, called with an output tensor that the
  caller allocated. This is how ``np.matmul(..., out=)``, ``torch.mm(..., out=)`` and onnxruntime
  with bound memory are called, so they are compared with it. It is the headline figure.
* ``moonpoly_vm``: the compiled Relax function, called through TVM's virtual machine, which
  allocates the output: what a user of the compiler calls. Peers that allocate theirs too (prepacked
  oneDNN and MKL, ``F.linear``, TVM with a schedule written by hand) are compared with it.

The ratio of ``moonpoly_vm`` to the best peer is reported beside the headline for every shape.

A third column of ours is no peer either: ``moonpoly_default`` is ``moonpoly`` with the same plans
on micro-kernels whose schedules were not searched for. It tells what that search is worth.

The best peer of a shape is the one with the lowest median over every second round; the ratio to it
comes from the other rounds, so that a lucky round is not counted as a peer's speed.
"""
