"""Speed of dynamic-shape matrix products against the libraries that people use today.

``python -m bench.gemm --quick`` runs every library in one process at one thread, in interleaved
rounds, and reports every case in which a library is faster, medians of paired ratios, the fraction
of the FMA peak that was measured in the same rounds, and what the machine allows at all. Without
``--quick`` it measures all cases, and some with two threads: see ``bench.gemm.threads``.

The way of a run: ``cases`` lists what is measured, ``operands`` makes the arrays, ``peers`` and
``ours`` bind them to calls, ``reference`` checks these, ``run`` times them, ``journal`` keeps the
times, ``summary`` and ``groups`` make ratios and judge them, ``document`` is the JSON of it all,
``report`` prints it, and ``page`` writes the README's table and the page of losses.

What is compared with what. A call of ours is timed in two ways:

* ``moonpoly``: the operator library's packed function, called with an output tensor that the
  caller allocated. This is how ``np.matmul(..., out=)``, ``torch.mm(..., out=)`` and onnxruntime
  with bound memory are called, so they are compared with it. It is the headline figure.
* ``moonpoly_vm``: the compiled Relax function, called through TVM's virtual machine, which
  allocates the output: what a user of the compiler calls. Peers that allocate theirs too (prepacked
  oneDNN and MKL, ``F.linear``, TVM with a schedule written by hand) are compared with it.

The ratio of ``moonpoly_vm`` to the best peer is reported beside the headline for every case.

``--peers moonpoly_default`` is no peer either: ``moonpoly`` with the same plans on micro-kernels
whose schedules were not searched for. It tells what that search is worth.

The best peer of a case is the library with the lowest median over every second round; the ratio to
it comes from the other rounds, so that a lucky round is not counted as a peer's speed. Where it
seems to be faster, the case is measured again with three times the rounds; both runs count.

A chain is 32 products in one executable against 32 in one session of onnxruntime: beside the small
products it tells how much of their time is the caller's.
"""
