# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch and transformers, exported as a pipeline needs them, and compared. torch is asked for only here."""
from __future__ import annotations

import inspect
import logging
import os
import tempfile
import warnings
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._errors import InvalidError, NotFoundError
from ._model import Context, Model, Path
from ._plan import Pair, Plan
from ._session import Session
from ._tensors import Tensor, as_tensor


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise NotFoundError(f"the package {name} is not installed: pip install {name}") from error


def from_torch(
    module: Any,
    example: Any,
    train: bool = False,
    *,
    path: Optional[Path] = None,
    input_names: Optional[Sequence[str]] = None,
    output_names: Optional[Sequence[str]] = None,
    dynamic_shapes: Optional[Mapping[str, Any]] = None,
    check: bool = True,
    tolerance: Optional[float] = None,
    context: Optional[Context] = None,
) -> Model:
    """A torch.nn.Module as a model.

    example:  what the module is called with: a tensor, a tuple, or a dict of arguments; a batch of 1 is doubled for the export, which
              would take it for a constant
    train:    for a Trainer: exported in training mode, every parameter under its own name, nothing folded
    path:     where the file is written, with larger weights beside it; None: in a folder of its own, as long as the model lives
    dynamic_shapes: {argument: {axis: name}} of the axes that stay free; None: the first axis of every tensor, as "batch"
    check:    the exported model must give what the module gives for the example in eval() (modules with running statistics of
              batches are not compared when they are exported for training), within `tolerance` of the largest value (None: 1e-4,
              of 16-bit types 2e-2)
    Raises InvalidError where parameters were merged or renamed, or results differ.
    """
    torch = _module("torch")
    arguments = _arguments(module, _doubled(torch, example))
    shapes = dict(dynamic_shapes) if dynamic_shapes is not None else {name: _free(torch, value) for name, value in arguments.items()}
    folder = None
    if path is None:
        folder = tempfile.TemporaryDirectory(prefix="onnxpipe-")
        path = os.path.join(folder.name, "model.onnx")
    was_training = module.training
    module.train(train)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module, (), kwargs=arguments, dynamo=True, optimize=not train, dynamic_shapes=shapes, verbose=False,
                input_names=None if input_names is None else list(input_names),
                output_names=None if output_names is None else list(output_names),
            )  # fmt: skip
            program.save(os.fspath(path))
    finally:
        module.train(was_training)
    if train:
        _has_parameters(module, {str(name) for name in program.model.graph.initializers})
    del program
    model = Model(path, context=context)
    model._keep.append(folder)
    if check and not (train and _has_statistics(torch, module)):
        _compare(torch, module, arguments, model, tolerance)
    return model


def _doubled(torch: Any, example: Any) -> Any:
    tree = torch.utils._pytree
    leaves = [leaf for leaf in tree.tree_leaves(example) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    if not leaves:
        raise TypeError("the example has no tensor with a batch")
    if any(leaf.shape[0] != 1 for leaf in leaves):
        return example
    return tree.tree_map(lambda leaf: torch.cat([leaf, leaf]) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 else leaf, example)


def _arguments(module: Any, example: Any) -> Dict[str, Any]:
    """The arguments of forward by name."""
    signature = inspect.signature(module.forward)
    try:
        if isinstance(example, Mapping):
            bound = signature.bind(**example)
        else:
            bound = signature.bind(*(example if isinstance(example, (tuple, list)) else (example,)))
    except TypeError as error:
        raise TypeError(f"the example does not fit forward of {type(module).__name__}: {error}") from None
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise TypeError(f"forward of {type(module).__name__} takes *{name}: give the module named arguments, {len(value)} of them")
    return dict(bound.arguments)


def _free(torch: Any, value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: {0: "batch"} if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 else None, value
    )


class _quiet:
    """Silences the warnings of exporters."""

    def __enter__(self) -> None:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("ignore")
        self._level = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *what: Any) -> None:
        logging.disable(self._level)
        self._caught.__exit__(*what)


def _has_parameters(module: Any, initializers: "set[str]") -> None:
    """Each parameter is an initializer, under one of its names. Raises with those that are not."""
    aliases: Dict[int, List[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            aliases.setdefault(id(parameter), []).append(name)
    missing = [names[0] for names in aliases.values() if not initializers.intersection(names)]
    if missing:
        raise InvalidError(
            f"of {len(aliases)} parameters {len(missing)} are no initializers of what was exported, under their names: "
            + ", ".join(missing[:5])
            + (", ..." if len(missing) > 5 else "")
            + ": the forward does not use them, or the exporter merged them"
        )


def _has_statistics(torch: Any, module: Any) -> bool:
    return any(isinstance(each, torch.nn.modules.batchnorm._BatchNorm) for each in module.modules())


def _array(value: Any) -> Any:
    return value.detach().cpu().contiguous()


def _compare(torch: Any, module: Any, arguments: Dict[str, Any], model: Model, tolerance: Optional[float]) -> None:
    tree = torch.utils._pytree
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            wanted = [leaf for leaf in tree.tree_leaves(module(**arguments)) if isinstance(leaf, torch.Tensor)]
    finally:
        module.train(was_training)
    given = [_array(leaf) for leaf in tree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    names = [info.name for info in model.inputs]
    if len(names) != len(given):
        raise InvalidError(f"the export has {len(names)} inputs ({', '.join(names)}), the example {len(given)} tensors")
    with Session(Plan(model, dims=_sizes(model, given))) as session:
        found = session.run(dict(zip(names, given)))
    if len(found) != len(wanted):
        raise InvalidError(f"the export has {len(found)} outputs, the module {len(wanted)}")
    for (name, own), other in zip(found.items(), wanted):
        ours = torch.from_dlpack(own if isinstance(own, Tensor) else as_tensor(own))
        if tuple(ours.shape) != tuple(other.shape):
            raise InvalidError(f"output {name!r} is of shape {list(ours.shape)}, the module's of {list(other.shape)}")
        _close(torch, name, ours, other.detach().cpu(), tolerance)


def _close(torch: Any, name: str, ours: Any, theirs: Any, tolerance: Optional[float]) -> None:
    most = tolerance if tolerance is not None else 2e-2 if theirs.dtype in (torch.bfloat16, torch.float16) else 1e-4
    ours, theirs = ours.double(), theirs.double()
    if not theirs.numel():
        return
    largest, off = float(theirs.abs().max()), float((ours - theirs).abs().max())
    if not off <= most * largest and off != 0:
        raise InvalidError(f"output {name!r} is off by {off:g}, of values up to {largest:g}: {most:g} of that is allowed")


def _sizes(model: Model, given: List[Any]) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for info, value in zip(model.inputs, given):
        for axis, (size, name) in enumerate(zip(info.shape, info.dims)):
            if size < 0:
                found[name or f"{info.name}.{axis}"] = int(value.shape[axis])
    return found


def from_transformers(
    source: Any,
    *,
    past: bool = False,
    train: bool = False,
    path: Optional[Path] = None,
    check: bool = True,
    context: Optional[Context] = None,
    **how: Any,
) -> Model:
    """A causal language model of transformers: its name, its configuration (random weights), or the model itself.

    Inputs: input_ids [batch, seq] of int64; output: logits [batch, seq, vocabulary].
    past:  also attention_mask [batch, total] of int64, past_key_I and past_value_I, and outputs present_key_I, present_value_I: with
           Plan(model, states=cache_pairs(model)) they stay on their devices
    train: for a Trainer, as of from_torch
    how:   what else from_pretrained or from_config is given, as torch_dtype
    """
    torch, transformers = _module("torch"), _module("transformers")
    if past and train:
        raise InvalidError("a model is trained without past")
    if isinstance(source, torch.nn.Module):
        inner = source
    elif isinstance(source, transformers.PretrainedConfig):
        inner = transformers.AutoModelForCausalLM.from_config(source, **how)
    elif isinstance(source, (str, os.PathLike)):
        inner = transformers.AutoModelForCausalLM.from_pretrained(source, **how)
    else:
        raise TypeError(f"a model of transformers is a name, a configuration or a module, not {type(source).__name__}")
    ids = torch.arange(2 * 5).reshape(2, 5) % inner.config.vocab_size
    with torch.no_grad():
        module, arguments, shapes, inputs, outputs = _cached(torch, transformers, inner, ids) if past else _plain(torch, inner, ids)
    return from_torch(
        module, arguments, train, path=path, input_names=inputs, output_names=outputs, dynamic_shapes=shapes, check=check, context=context
    )


def _plain(torch: Any, inner: Any, ids: Any) -> Tuple[Any, Dict[str, Any], Dict[str, Any], List[str], List[str]]:
    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    return Logits(), {"input_ids": ids}, {"input_ids": {0: "batch", 1: "seq"}}, ["input_ids"], ["logits"]


def _cached(torch: Any, transformers: Any, inner: Any, ids: Any) -> Tuple[Any, Dict[str, Any], Dict[str, Any], List[str], List[str]]:
    class Cached(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = inner

        def forward(self, input_ids: Any, attention_mask: Any, past: List[Any]) -> Any:
            cache = transformers.DynamicCache(config=self.model.config)
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            result = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
            return result.logits, [each for layer in result.past_key_values.layers for each in (layer.keys, layer.values)]

    layers = inner.eval()(input_ids=ids[:, :3], use_cache=True).past_key_values.layers
    past = [each for layer in layers for each in (layer.keys, layer.values)]
    names = [f"{kind}_{layer}" for layer in range(len(layers)) for kind in ("key", "value")]
    arguments = {"input_ids": ids, "attention_mask": torch.ones(2, 3 + ids.shape[1], dtype=torch.int64), "past": past}
    shapes = {
        "input_ids": {0: "batch", 1: "seq"},
        "attention_mask": {0: "batch", 1: "total"},
        "past": [{0: "batch", 2: "past"} for _ in past],
    }
    inputs = ["input_ids", "attention_mask", *("past_" + name for name in names)]
    return Cached(), arguments, shapes, inputs, ["logits", *("present_" + name for name in names)]


def cache_pairs(model: Model, elements: int = 0) -> List[Pair]:
    """The pairs of a model of from_transformers(past=True), or of any whose outputs present_X go with inputs past_X: for Plan's `states`.
    elements: of each buffer, as heads * tokens at most * width; 0: what the model is bound with."""
    inputs = {info.name for info in model.inputs}
    pairs = [(info.name, "past" + info.name[len("present") :]) for info in model.outputs if info.name.startswith("present")]
    found = [Pair(output, own, elements) for output, own in pairs if own in inputs]
    if not found:
        raise NotFoundError(f"no output present_X goes with an input past_X, of {', '.join(sorted(inputs))}")
    return found
