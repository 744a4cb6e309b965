"""Speed of convolutions against the libraries that people use today.

``python -m bench.conv --quick`` measures some layers with one thread and reports every layer in
which a library is faster; without ``--quick`` it measures all layers, with one thread and with two.
It is made like the bench of products, ``bench.gemm``, whose journal, workers and protocol it uses.

The way of a run: ``cases`` lists the layers, ``operands`` makes the arrays and what they must give,
``torch_peers``, ``onnx_peers``, ``tvm_peers`` and ``ours`` bind them to calls, a ``worker`` process
for each library times them, ``summary`` makes ratios and judges them, ``report`` prints them.

Every library runs in a process of its own; while one is timed the others are stopped.

Layouts. A network of convolutions pays for layouts at its borders. Within it each library gets its
input, and leaves its output, in the layout that it works with: ours NHWC, PyTorch either order,
oneDNN and onnxruntime their blocked layouts. ``onnxruntime`` is also there as a session of one
layer, which converts NCHW to its blocks and back. The first layer of a network has NCHW images as
its input for everybody; ours has to turn them round, and that is timed.
"""
