"""Fetches the networks of PP-OCRv4 (text recogniser, classifier of directions), once."""

from __future__ import annotations

from bench.wheels import Wheel

RECOGNISER = "ch_PP-OCRv4_rec_infer.onnx"
CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_infer.onnx"

MODELS = Wheel(
    package="rapidocr-onnxruntime",
    version="1.4.4",
    sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    prefix="rapidocr_onnxruntime/models/",
    files=(RECOGNISER, CLASSIFIER),
    what="The networks (a wheel of 15 MB) are",
    # its code, which is not used, claims to need a Python below 3.13
    options=("--ignore-requires-python",),
)
