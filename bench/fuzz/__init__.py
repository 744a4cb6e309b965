"""A seeded fuzzer of matrix products: random forms at random shapes, judged against numpy.

``python -m bench.fuzz --cases 10000 --seed 1`` draws small Relax functions (*forms*), compiles
several of them as one module with `tvm_moonpoly.pipeline`, and runs each at 25 random shapes. Every
case must be right within a bound that follows from the arithmetic, or raise where numpy would, and
must touch no memory but its own: operands and results lie against pages that can be neither read
nor written, and what is left around them is filled with a pattern.

Everything is drawn from (seed, number of the case), so that ``--seed S --case I`` runs one again.

* `graph` is a form as data, `draw` draws one, `build` makes Relax of it.
* `run` draws sizes and values of one case, `reference` says what comes out and how exactly.
* `memory` guards tensors, `hooks` puts the guards where the virtual machine and the packed
  functions take their memory, `execute` runs one case and judges it.
* `worker` does so in processes that may die; `cli` deals out the work and reports.
"""
