# SPDX-License-Identifier: Apache-2.0
"""Training: steps, evaluation, checkpoints, parameters by name."""
from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from . import _dtypes, _tensors
from ._dispatch import Request
from ._errors import InvalidError, NotFoundError
from ._model import Model, Path
from ._plan import Plan, Training, choice
from ._session import EVALUATION, STEP, Inputs, Outputs, Runner, _Results
from ._tensors import Array, ArrayLike

SKIPPED = ("", "overflow", "not finite", "held")
KINDS = ("weight", "gradient", "first moment", "second moment", "master")
POSITION = 4


@dataclass(frozen=True)
class Step:
    """The result of a training step.

    step:    mini-batches since training began, this one included
    loss:    mean over the mini-batch's labels that count
    count:   the divisor of that mean
    gradient_norm: norm of all gradients, before clipping
    seconds: wall time
    skipped: why no parameter changed: "overflow", "not finite", "held"; "" if they did
    """

    step: int
    loss: float
    count: float
    gradient_norm: float
    lr: float
    loss_scale: float
    seconds: float
    skipped: str


@dataclass(frozen=True)
class Evaluation:
    """loss, count: as of a Step
    outputs: the tensors that the loss reads, by name"""

    loss: float
    count: float
    outputs: Outputs


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter of a Trainer.

    n_bytes: bytes of the weight in its own type
    copies:  stage instances that hold it
    gradient_norm: norm of its gradient in the last step, before clipping
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    trained: bool
    n_bytes: int
    copies: int
    gradient_norm: float
    number: int = 0


@dataclass(frozen=True)
class Clock:
    """Counters that, with parameters and moments, continue a run."""

    steps: int
    updates: int
    good_steps: int = 0
    loss_scale: float = 1.0


class Parameters(MutableMapping[str, Array]):
    """Weights by initializer name. Reading gives a new array of the initializer's type and shape; assigning changes every copy.
    Read and assign between steps."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._known: Dict[str, ParameterInfo] = {info.name: info for info in trainer.parameter_infos()}

    def __getitem__(self, name: str) -> Array:
        return self._trainer.get(name)

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        self._trainer.set(name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"the parameter {name!r} is the model's: it can be changed, not taken out")

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def info(self, name: str) -> ParameterInfo:
        """Type and shape of a parameter, and whether it is trained. Raises KeyError."""
        return self._known[name]


class Trainer(Runner):
    """Trains by a plan with `training`: `with Trainer(model, training=Training(...), stages=2) as trainer`.

    plan:           such a plan, or a model; for a model, a plan is made from `training` and the other arguments, as of Plan
    keep_gradients: gradients can be read until the next step
    hold:           a step that is not finite ends all updates until a clock or a checkpoint is set
    in_flight, max_shapes: as of Session
    watchdog, check_finite: as of Session
    reference:      as of Session
    """

    _what = "trainer"

    def __init__(
        self,
        plan: "Plan | Model",
        *,
        training: Optional[Training] = None,
        keep_gradients: bool = False,
        hold: bool = False,
        check_finite: bool = False,
        reference: bool = False,
        in_flight: int = 0,
        max_shapes: int = 0,
        watchdog: Optional[float] = None,
        **plan_arguments: Any,
    ) -> None:
        own = plan if isinstance(plan, Plan) else Plan(plan, training=training or Training(), **plan_arguments)
        if isinstance(plan, Plan) and (training is not None or plan_arguments):
            raise InvalidError(f"a plan is made already: {', '.join(plan_arguments) or 'training'} cannot be given again")
        if not own.trains:
            raise InvalidError("this plan is for inference: make it with training=Training(...)")
        flags = dict(keep_gradients=keep_gradients, hold=hold, check_finite=check_finite, reference=reference)
        self._open(own, in_flight, max_shapes, watchdog, flags)
        library, options = self._library, own._options
        labels, judged = library.plain(options.labels), library.plain(options.output)
        if labels is not None and labels not in self._wanted:
            self._added.append(labels)
            if options.loss == library.dl.OPIPE_LOSS_CROSS_ENTROPY:
                self._wanted[labels] = _dtypes.of_number(library.dl.OPIPE_INT64)
        self._judged = ["loss", judged] if judged else ["loss"]

    # -- steps --

    def _report(self, pointer: Any) -> Any:
        report = self._library.struct("opipe_train_report")
        self._library.call("request_report", pointer, report)
        return report

    def _stepped(self, pointer: Any, _results: _Results) -> Step:
        own = self._report(pointer)
        return Step(own.step, own.loss, own.count, own.gradient_norm, own.lr, own.loss_scale, own.step_ns / 1e9, SKIPPED[own.skipped])

    def _evaluated(self, pointer: Any, results: _Results) -> Evaluation:
        own = self._report(pointer)
        outputs = self._collect(pointer, results, None, self._judged)
        outputs.pop("loss", None)
        return Evaluation(own.loss, own.count, outputs)

    def step(self, inputs: Inputs, *, lr: Optional[float] = None) -> Step:
        """One mini-batch: forward, backward, update.

        inputs: every graph input and the labels, by name, for the whole mini-batch
        lr:     learning rate of this step alone; None: the plan's
        """
        return self._run(STEP, inputs, None, None, self._stepped, _rate(lr))  # type: ignore[no-any-return]

    def submit(
        self, inputs: Inputs, *, lr: Optional[float] = None, deadline: Optional[float] = None, timeout: Optional[float] = None
    ) -> Request[Step]:
        """step() as a future, and awaitable. Stages stay busy if the next step is submitted before the last has finished. Do not
        write to the arrays before the step is done. With double-buffered weights a step finishes only with the next one, with flush(),
        or when result() is called: awaiting the newest step alone does not finish it."""
        return self._submit(STEP, inputs, None, deadline, timeout, self._stepped, _rate(lr))

    def evaluate(self, inputs: Inputs) -> Evaluation:
        """Runs forward only, with the parameters after the steps before it."""
        return self._run(EVALUATION, inputs, None, None, self._evaluated, {})  # type: ignore[no-any-return]

    def steps(self, batches: Iterable[Inputs], *, ahead: int = 2) -> Iterator[Step]:
        """A step for each mini-batch, `ahead` of them under way (more with double-buffered weights), in their order."""
        under_way: List[Request[Step]] = []
        for inputs in batches:
            under_way.append(self.submit(inputs))
            if len(under_way) >= ahead:
                yield under_way.pop(0).result()
        if under_way:
            self.flush()
        for request in under_way:
            yield request.result()

    def flush(self) -> None:
        """Waits until no step is under way, and completes the steps that a double-buffered schedule holds back."""
        self._library.call("session_flush", self._handle())

    # -- parameters --

    def parameter_infos(self) -> List[ParameterInfo]:
        """All parameters, in the order of the plan."""
        library, found = self._library, []  # type: ignore[var-annotated]
        own = library.struct("opipe_parameter_info")
        while True:
            try:
                library.call("session_parameter", self._handle(), len(found), own)
            except NotFoundError:
                return found
            shape = tuple(own.shape[d] for d in range(own.rank))
            found.append(
                ParameterInfo(
                    library.plain(own.name) or "", _dtypes.of_number(own.dtype).name, shape, bool(own.trained), int(own.n_bytes),
                    int(own.n_copies), float(own.gradient_norm), int(own.dtype),
                )  # fmt: skip
            )

    @property
    def parameters(self) -> Parameters:
        """Weights by initializer name, to read and to assign."""
        return Parameters(self)

    def _known(self, name: str) -> ParameterInfo:
        infos = self.__dict__.setdefault("_infos", {})
        if not infos:
            infos.update({info.name: info for info in self.parameter_infos()})
        if name not in infos:
            raise NotFoundError(f"there is no parameter {name!r} among the {len(infos)} of this trainer", -6)
        found: ParameterInfo = infos[name]
        return found

    def _type(self, info: ParameterInfo, kind: str) -> _dtypes.DType:
        number = choice(kind, KINDS, "the kind of a parameter's state")
        return _dtypes.of_number(self._library.dl.OPIPE_FLOAT if number else info.number)

    def get(self, name: str, kind: str = "weight", *, version: int = 0) -> Array:
        """A new array with a parameter's "weight", "gradient", "first moment", "second moment" or "master" (float32), in its shape.

        version: 1: the older version of double-buffered weights
        """
        info = self._known(name)
        dtype = self._type(info, kind)
        array, address = _tensors.empty(dtype, info.shape)
        n_bytes = array.bits.nbytes if isinstance(array, _tensors.Tensor) else array.nbytes
        ffi = self._library.ffi
        self._library.call(
            "session_get", self._handle(), self._names[name], KINDS.index(kind), version, ffi.cast("void *", address), n_bytes
        )
        return array

    def set(self, name: str, value: ArrayLike, kind: str = "weight", *, version: int = 0) -> None:
        """Sets a parameter, or part of its state, in every copy. value: an array of its type and shape."""
        info = self._known(name)
        dtype = self._type(info, kind)
        tensor, keep = self._library.ffi.new("opipe_tensor *"), []  # type: ignore[var-annotated]
        dense = value if hasattr(value, "__dlpack__") or isinstance(value, _tensors.Tensor) else np.asarray(value)
        if isinstance(dense, np.ndarray):
            dense = np.ascontiguousarray(dense).reshape(dense.shape)
        _tensors.fill(tensor[0], dense, f"parameter {name!r}", keep)
        shape = tuple(tensor.shape[d] for d in range(tensor.rank))
        given = _dtypes.of_dl(tensor.dtype.code, tensor.dtype.bits)
        if given.name != dtype.name or shape != info.shape:
            raise InvalidError(f"parameter {name!r} is {dtype.name} {list(info.shape)}, what is set is {given.name} {list(shape)}")
        if tensor.strides != self._library.ffi.NULL and not _dense(tensor):
            raise InvalidError(f"parameter {name!r}: what is set must be dense")
        if tensor.device_type != 1:
            raise InvalidError(f"parameter {name!r}: what is set lies on a device of DLPack type {tensor.device_type}, not in host memory")
        ffi = self._library.ffi
        data = ffi.cast("char *", tensor.data) + tensor.byte_offset
        n_bytes = dtype.n_bytes(math.prod(shape))
        self._library.call("session_set", self._handle(), self._names[name], KINDS.index(kind), version, data, n_bytes)

    # -- checkpoints --

    def save(self, path: Path, position: Iterable[int] = ()) -> None:
        """Writes a checkpoint to the folder `path`: parameters, optimizer state, steps, and up to four numbers of your own, such as
        the position in your data. A process that dies meanwhile leaves the old checkpoint or the new one."""
        numbers = list(position)
        if len(numbers) > POSITION:
            raise ValueError(f"a checkpoint has room for {POSITION} numbers of yours, not {len(numbers)}")
        own = self._library.ffi.new("uint64_t[]", numbers + [0] * (POSITION - len(numbers)))
        self._library.call("session_save", self._handle(), self._library.string(path, "a path"), own)

    def resume(self, path: Path) -> Tuple[int, ...]:
        """Continues from a checkpoint, made under any plan; returns the four numbers that were saved with it."""
        own = self._library.ffi.new("uint64_t[]", POSITION)
        self._library.call("session_load", self._handle(), self._library.string(path, "a path"), own)
        return tuple(int(number) for number in own)

    def save_model(self, path: Path) -> None:
        """Writes the model file with the newest parameters, in its own types."""
        self._library.call("session_save_model", self._handle(), self._library.string(path, "a path"))

    def save_gradients(self, path: Path) -> None:
        """Writes the gradients of the last step to one safetensors file."""
        self._library.call("session_save_gradients", self._handle(), self._library.string(path, "a path"))

    @property
    def clock(self) -> Clock:
        """The Clock: steps and updates so far."""
        own = self._library.struct("opipe_train_clock")
        self._library.call("session_clock", self._handle(), own)
        return Clock(own.steps, own.updates, own.good_steps, own.loss_scale)

    @clock.setter
    def clock(self, value: Clock) -> None:
        own = self._library.struct(
            "opipe_train_clock", steps=value.steps, updates=value.updates, good_steps=value.good_steps, loss_scale=value.loss_scale
        )
        self._library.call("session_set_clock", self._handle(), own)


def _rate(lr: Optional[float]) -> Mapping[str, Any]:
    return {} if lr is None else {"flags": 2, "lr": float(lr)}


def _dense(tensor: Any) -> bool:
    step = 1
    for d in reversed(range(tensor.rank)):
        if tensor.shape[d] > 1 and tensor.strides[d] != step:
            return False
        step *= tensor.shape[d]
    return True
