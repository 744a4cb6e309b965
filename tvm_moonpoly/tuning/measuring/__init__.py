"""Measuring tasks and plans, on this machine and on others."""
