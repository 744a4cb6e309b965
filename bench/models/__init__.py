"""Whole networks against onnxruntime, of every size through one executable each."""
