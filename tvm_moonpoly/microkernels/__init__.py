"""Micro-kernels: fixed tiles as (reference semantics, constraint, schedule)."""
