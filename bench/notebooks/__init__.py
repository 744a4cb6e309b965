"""Executed notebooks: TVM's own ways with dynamic shapes, how a plan is chosen, the libraries.

``python -m bench.notebooks`` executes them again in place; ``make notebooks`` does that in an
environment that holds what they need. All that takes more than a few lines lies in the modules of
this folder; a cell calls them and shows what they return.
"""
