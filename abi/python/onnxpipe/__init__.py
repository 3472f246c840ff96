# SPDX-License-Identifier: Apache-2.0
"""onnx-pipe: pipelines of ONNX transformers, for requests and for training.

    import numpy as np, onnxpipe
    model = onnxpipe.Model("model.onnx")
    with onnxpipe.Session(onnxpipe.Plan(model, stages=2)) as session:
        logits = session.run({"input_ids": np.ones((1, 8), np.int64)})["logits"]

Tensors are numpy arrays, or whatever lends its memory by DLPack (torch, ...): they are read where they lie. Everything that fails
raises an onnxpipe.Error with the library's message. All functions may be called from any thread, and release the GIL while they
work; Ctrl-C interrupts waiting.
"""
from __future__ import annotations

from ._dispatch import Request
from ._errors import (
    AbiError,
    CancelledError,
    DeadlineError,
    DeviceError,
    Error,
    InputOutputError,
    InternalError,
    InvalidError,
    LimitError,
    NoMemoryError,
    NotFoundError,
    PeerError,
    StateError,
    UnsupportedError,
)
from ._export import cache_pairs, from_torch, from_transformers
from ._generate import GenerationInfo, Sequence, SequenceInfo, Token, read_genai
from ._library import Library
from ._model import Context, Model, TensorInfo, default_context
from ._plan import Device, Generation, Pair, Plan, RankMemory, Training
from ._session import Bound, Session, State, StateInfo, Trace
from ._tensors import Tensor, as_tensor
from ._train import Clock, Evaluation, ParameterInfo, Parameters, Step, Trainer

__all__ = [
    "AbiError", "Bound", "CancelledError", "Clock", "Context", "DeadlineError", "Device", "DeviceError", "Error", "Evaluation",
    "Generation", "GenerationInfo", "InputOutputError", "InternalError", "InvalidError", "Library", "LimitError", "Model",
    "NoMemoryError", "NotFoundError", "Pair", "ParameterInfo", "Parameters", "PeerError", "Plan", "RankMemory", "Request",
    "Sequence", "SequenceInfo", "Session", "State", "StateError", "StateInfo", "Step", "Tensor", "TensorInfo", "Token", "Trace",
    "Trainer", "Training", "UnsupportedError", "as_tensor", "cache_pairs", "default_context", "from_torch", "from_transformers",
    "read_genai",
]  # fmt: skip
