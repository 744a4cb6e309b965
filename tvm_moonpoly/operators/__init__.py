"""Operators: planner, loops and micro-kernels put together as native functions."""
