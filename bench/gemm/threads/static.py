"""Ours with the work split once: a chunk for each thread, what handing out chunks is to beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm

from bench.gemm import ours
from bench.gemm.operands import Operands
from bench.gemm.peers import DIRECT, STATIC, Peer, Run
from bench.gemm.shapes import EPILOGUES
from tvm_moonpoly import operators
from tvm_moonpoly.planner.plan import Plan


def static(target: tvm.target.Target) -> Peer:
    """As ``moonpoly``, with its tiles and blocks, the plan's chunks joined to one for each thread.

    For constant weights: their plans are data that a caller may replace.
    """
    library = operators.library(target).module

    def prepare(operands: Operands) -> Run:
        shape = operands.shape
        assert operands.b is not None
        made = ours.make_constants(operands.b, operands.bias, target)
        plans = made.table.numpy()
        if shape.m >= len(plans):
            raise ValueError(f"{shape.m} rows are planned at the call")
        table = tvm.runtime.tensor(static_plans(plans))
        return ours.linear_call(library, operands, replace(made, table=table))

    return Peer(STATIC, f"as {DIRECT}, one chunk a thread", prepare, epilogues=EPILOGUES)


def static_plans(table: np.ndarray) -> np.ndarray:
    """The encoded plans of ``table``, each with as many chunks as workers."""
    return np.array([joined(int(word)) for word in table], table.dtype)


def joined(word: int) -> int:
    """An encoded plan with one chunk for each worker: parts of the side that is cut into enough,
    the columns if both are; a plan that cannot be cut so, or is not cut, as it is."""
    plan = Plan.decode(word) if word else None
    if plan is None or plan.splits_m * plan.splits_n <= plan.workers:
        return word
    for rows, columns in ((1, plan.workers), (plan.workers, 1)):
        if plan.splits_m >= rows and plan.splits_n >= columns:
            return replace(plan, splits_m=rows, splits_n=columns).encode()
    return word
