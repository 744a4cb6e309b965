"""How good the planner's choices are: against the best of many plans, and against simpler planners.

``python -m bench.planner --json out.json`` takes shapes that no cost was fitted to: products of
public models, and random ones from a printed seed. For each it times the plans that the operator
library can run, not only those that the planner weighs (`plans.every_plan`): with every blocking,
reading of B, width and height of the main region. Of the heights of the tail there are two alone,
the cheapest by the cost table and the tallest; of heights that cut the rows alike, the lowest. The
fastest of these plans is the **oracle**; by how much the chosen plan is slower is the **loss**.
`metrics.TARGETS` is what the losses are to reach.

* Plans are eliminated by measured time alone (`halving`): each is timed briefly, those near the
  best again and longer, until a few are left. What any of the planners chose is always among them.
* These finalists take turns in rounds. The oracle is picked on every other round and compared on
  the rest, so that a lucky plan does not look better than it is. A loss is the median of the
  ratios of equal rounds, and never below 0.
* The clock is the processor time of the calling thread; with several threads it is the wall clock.
  What an empty call from Python takes is subtracted from all times. A chain of multiply-adds is
  timed in every round: how far its speed moved tells how far the machine's did.
* Operands are made once a shape, in a few sets that take turns, so that the place in memory that a
  set happens to have does not decide. A call is made untimed before a short sample, and whenever
  the set changes. B, whether constant weights or not, is therefore found in the smallest cache that
  holds it, as in a loop that computes the same product again and again: the assumption that the
  planner makes.

With several threads (`threads`) the plans are those on one core, and the fastest of these, by
their times on one core, and the planner's own shared out in every way.

The same measurements judge other planners: the learned table with parts of it taken away, and a
fixed rule (`variants`), and the planner told something wrong about the machine (`sensitivity`).
`decision` measures what deciding costs.
"""
