"""Which function computes an ONNX operator in torch: those that the networks of the bench have."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from bench.models import torch_layers as layers
from bench.models import torch_values as values
from bench.models.torch_values import elementwise

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": elementwise(operator.add),
    "Sub": elementwise(operator.sub),
    "Mul": elementwise(operator.mul),
    "Div": elementwise(operator.floordiv, operator.truediv),
    "Pow": elementwise(operator.pow),
    "Max": elementwise(max, values.largest),
    "Equal": elementwise(operator.eq),
    "Greater": elementwise(operator.gt),
    "Where": elementwise(lambda condition, one, other: one if condition else other, torch.where),
    "Clip": values.clip,
}
"""Those whose operands may be numbers where ONNX has tensors of one element."""

OPERATORS: dict[str, Callable[..., Any]] = {
    **ELEMENTWISE,
    "AveragePool": layers.average_pool,
    "BatchNormalization": layers.batch_norm,
    "Cast": values.cast,
    "Concat": values.concat,
    "ConstantOfShape": values.constant_of_shape,
    "Conv": layers.convolution,
    "Erf": torch.erf,
    "Expand": values.expand,
    "Flatten": layers.flatten,
    "Gather": values.gather,
    "Gemm": layers.gemm,
    "GlobalAveragePool": layers.global_average,
    "HardSigmoid": layers.hard_sigmoid,
    "Identity": values.identity,
    "LayerNormalization": layers.layer_norm,
    "MatMul": torch.matmul,
    "MaxPool": layers.max_pool,
    "Range": values.arange,
    "ReduceL2": layers.reduced(torch.linalg.vector_norm),
    "ReduceMean": layers.reduced(torch.mean),
    "ReduceSum": layers.reduced(torch.sum),
    "Relu": torch.relu,
    "Reshape": values.reshape,
    "Shape": values.shape,
    "Sigmoid": torch.sigmoid,
    "Slice": values.part,
    "Softmax": layers.softmax,
    "Split": values.split,
    "Sqrt": torch.sqrt,
    "Squeeze": values.squeeze,
    "Tanh": torch.tanh,
    "Transpose": values.transpose,
    "Unsqueeze": values.unsqueeze,
}
