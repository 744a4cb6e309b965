"""Tuning logs that ship with tvm_moonpoly, one folder a machine: data only, no code."""
