# SPDX-License-Identifier: Apache-2.0
"""Plans: where a model is cut, what each rank does when, proven before anything runs."""
from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _tensors
from ._errors import InvalidError, NotFoundError
from ._handles import Handle
from ._library import Library
from ._model import Context, Model, Path, bytes_of

LOSSES = ("output", "cross-entropy", "mse", "bce")
OPTIMIZERS = ("sgd", "adam", "adamw")
LR_SCHEDULES = ("constant", "linear", "cosine")
RECOMPUTE = ("none", "stage", "block", "attention")
COMPUTE = {"fp32": "OPIPE_FLOAT", "bf16": "OPIPE_BFLOAT16", "fp16": "OPIPE_FLOAT16"}


def choice(value: str, known: Sequence[str], what: str) -> int:
    if value not in known:
        raise ValueError(f"{what} is {value!r}, but should be one of {', '.join(known)}")
    return list(known).index(value)


@dataclass(frozen=True)
class Device:
    """The device of a rank.

    kind:    id of a backend
    options: its "key=value,..."
    memory:  cap in bytes, or "300MiB"; None: none
    index:   number among the backend's devices
    threads: compute threads of the rank; 0: the backend's choice
    """

    kind: str = "cpu"
    options: Optional[str] = None
    memory: Union[int, str, None] = None
    index: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Training:
    """The loss, the optimizer, and the parameters to train.

    loss:       "cross-entropy" (logits [.., classes], labels of int64), "mse", "bce", or "output": a scalar of the graph
    output:     the tensor that the loss reads; None: the only scalar float output
    labels:     an input with labels or targets, of the graph or added
    shift:      position t is compared with label t + 1; labels are given unshifted
    ignore:     the label that does not count
    smoothing:  label smoothing, in [0, 1)
    optimizer:  "sgd", "adam", "adamw", with lr, momentum, betas, epsilon, decay (None: 0.01 for adamw, else 0)
    lr_schedule: "constant", "linear" or "cosine", to 0 at total_steps, after warmup_steps
    clip_norm:  largest norm of all gradients together; 0: no clipping
    trainable, frozen: patterns of initializer names, with * and ?
    no_decay:   patterns of parameters without weight decay
    recompute:  "none", "stage", "block" or "attention"
    compute:    "fp32", "bf16" or "fp16" (with a dynamic loss scale): type of activations and products; parameters stay float32
    seed:       seed of dropout
    shard:      ranks that hold the same parameter share out its optimizer state and update; bits do not change
    """

    loss: str = "output"
    output: Optional[str] = None
    labels: Optional[str] = None
    shift: bool = False
    ignore: int = -100
    smoothing: float = 0.0
    optimizer: str = "adamw"
    lr: float = 1e-3
    momentum: float = 0.0
    nesterov: bool = False
    betas: Tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: Optional[float] = None
    lr_schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    clip_norm: float = 0.0
    trainable: Sequence[str] = ()
    frozen: Sequence[str] = ()
    no_decay: Sequence[str] = ()
    recompute: str = "none"
    compute: str = "fp32"
    seed: int = 0
    shard: bool = False

    def options(self, library: Library, names: _tensors.Names, keep: List[Any]) -> Any:
        """The opipe_train_options; `keep` gets the objects that they point to."""
        ffi = library.ffi
        # The last match wins: what is frozen first, so that exceptions are spelled as trainable.
        globs = [(pattern, 0) for pattern in self.frozen] + [(pattern, 1) for pattern in self.trainable]
        rows = ffi.new("opipe_train_glob[]", len(globs))
        for row, (pattern, trainable) in zip(rows, globs):
            row.pattern, row.trainable = names[pattern], trainable
        no_decay = ffi.new("const char *[]", [names[pattern] for pattern in self.no_decay])
        if self.compute not in COMPUTE:
            raise ValueError(f"Training.compute is {self.compute!r}, but should be one of {', '.join(COMPUTE)}")
        decay = self.decay if self.decay is not None else 0.01 if self.optimizer == "adamw" else 0.0
        keep += [rows, no_decay, names]
        return library.struct(
            "opipe_train_options",
            loss=choice(self.loss, LOSSES, "Training.loss"),
            output=ffi.NULL if self.output is None else names[self.output],
            labels=ffi.NULL if self.labels is None else names[self.labels],
            ignore=self.ignore, smoothing=self.smoothing, shift=int(self.shift), n_globs=len(globs), globs=rows,
            recompute=choice(self.recompute, RECOMPUTE, "Training.recompute"), compute=getattr(library.dl, COMPUTE[self.compute]),
            optimizer=choice(self.optimizer, OPTIMIZERS, "Training.optimizer"), seed=self.seed, lr=self.lr, momentum=self.momentum,
            beta1=self.betas[0], beta2=self.betas[1], epsilon=self.epsilon, decay=decay, clip_norm=self.clip_norm,
            flags=(1 if self.nesterov else 0) | (4 if self.shard else 0),
            lr_schedule=choice(self.lr_schedule, LR_SCHEDULES, "Training.lr_schedule"), warmup_steps=self.warmup_steps,
            total_steps=self.total_steps, no_decay=no_decay, n_no_decay=len(no_decay), loss_scaling=int(self.compute == "fp16"),
        )  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """An output that becomes an input of the same stream's next request (keys and values of a decoder).

    capacity: elements of each of its two buffers; 0: as the model is bound
    """

    output: str
    input: str
    capacity: int = 0


@dataclass(frozen=True)
class Generation:
    """Sequences that a session generates together.

    context:  most tokens of a sequence
    tokens:   whose keys and values are held; 0: as many as the memory caps leave, at most `active` whole contexts
    page:     tokens of a page; 0: 64
    rows:     most of a pass; 0: 64
    active:   most sequences with pages at a time; 0: 16
    groups:   most passes in flight; 0: as many as give most tokens by simulation
    draft:    most drafted ids of a sequence in a pass; 0: none
    gap:      longest pass with slices of prompts, in passes of one row for each active sequence; gap_ms: the same in milliseconds
    output:   logits; None: the output before which most attentions stand
    """

    context: int
    tokens: int = 0
    page: int = 0
    rows: int = 0
    active: int = 0
    groups: int = 0
    draft: int = 0
    gap: float = 0.0
    gap_ms: float = 0.0
    output: Optional[str] = None

    def params(self, library: Library, names: _tensors.Names) -> Any:
        """The opipe_generation_params."""
        return library.struct(
            "opipe_generation_params", context=self.context, n_tokens=self.tokens, page=self.page, rows=self.rows, active=self.active,
            groups=self.groups, draft=self.draft, gap_passes=self.gap, gap_ms=self.gap_ms, output=_text(names, self.output, library.ffi),
        )  # fmt: skip


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank by purpose. `cap` is None if the device has none; `estimated` is set if the device cannot be asked."""

    rank: int
    total: int
    cap: Optional[int]
    estimated: bool
    parts: Dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, info: Any) -> "RankMemory":
        parts = {
            name: int(getattr(info, name + "_bytes"))
            for name in "params activation workspace boundary gradient optimizer version stash state mapped host".split()
        }
        cap = None if info.cap_bytes == 2**64 - 1 else int(info.cap_bytes)
        return cls(int(info.rank), int(info.total_bytes), cap, bool(info.flags & 1), parts)


class Plan(Handle):
    """How a model runs as a pipeline. A notebook shows it as a page with the order on each rank, the bytes and the cut.

    model:        a bound model, or a loaded one, which is then bound to `dims`
    dims:         {"batch": 8, "seq": 128}; other dimensions get the library's numbers
    stages:       0: as many as there are devices, or 1; ranks: 0: as the schedule needs
    devices:      a Device, or a backend's id, for each rank; the last one repeats
    microbatches: parts of a request or mini-batch along its batch; replicas: copies of the whole pipeline
    tensor:       ranks among which products, tables and heads of every stage are divided; 0: 1
    sequence:     with tensor: work between these is divided by rows (samples x tokens)
    scattered:    with tensor: members send parts of what goes to another stage, whatever the link
    offload:      stashes that wait in the host's memory: a glob of names, "auto", None; offload_memory: most of it
    schedule:     "gpipe", "name:key=value,..."; cut: tensors by boundary, "t1;t2"; transport: "id:key=value,..."
    memory:       cap of every device that has none of its own, in bytes or as "300MiB"
    measured:     costs of nodes are measured on this machine, not computed from rates
    improve:      search for an order faster than the schedule's own
    training:     loss, optimizer and parameters of a Trainer; None: a plan for inference
    states:       pairs that streams keep
    streams:      number of streams whose memory is counted
    generation:   a decoder's sequences, which Session.generate starts; the model's dimensions need no numbers
    cluster:      text of a cluster, whose devices need not be present
    """

    _what = "plan"

    def __init__(
        self,
        model: Model,
        *,
        dims: Optional[Mapping[str, int]] = None,
        pins: Optional[Mapping[str, _tensors.ArrayLike]] = None,
        stages: int = 0,
        ranks: int = 0,
        devices: Union[Device, str, Sequence[Union[Device, str]]] = (),
        microbatches: int = 0,
        replicas: int = 0,
        stage_replicas: Sequence[int] = (),
        tensor: int = 0,
        sequence: bool = False,
        scattered: bool = False,
        offload: Optional[str] = None,
        offload_memory: Union[int, str, None] = None,
        schedule: Optional[str] = None,
        cut: Optional[str] = None,
        batch_dim: Optional[str] = None,
        memory: Union[int, str, None] = None,
        depth: int = 0,
        measured: bool = False,
        improve: bool = False,
        ignore_annotations: bool = False,
        transport: Optional[str] = None,
        training: Optional[Training] = None,
        states: Sequence[Union[Pair, Tuple[str, str], Tuple[str, str, int]]] = (),
        streams: int = 0,
        generation: Optional[Generation] = None,
        cluster: Union[str, bytes, None] = None,
    ) -> None:
        library, ffi = model._library, model._library.ffi
        if model.bound and (dims or pins):
            raise InvalidError("this model is bound already: its dimensions and pins cannot be given again")
        if generation is not None and (dims or pins):
            raise InvalidError("a plan with `generation` has no use for dims and pins: it is made for every length up to its context")
        bound = model if model.bound or generation is not None else model.bind(dims, pins=pins, train=training is not None)
        names = _tensors.Names()
        chosen = [devices] if isinstance(devices, (Device, str)) else list(devices)
        rows = ffi.new("opipe_device_choice[]", len(chosen))
        for row, device in zip(rows, (Device(d) if isinstance(d, str) else d for d in chosen)):
            row.kind, row.index, row.threads = names[device.kind], device.index, device.threads
            row.options = ffi.NULL if device.options is None else names[device.options]
            row.memory_bytes = bytes_of(device.memory, "a device's memory")
        given = [pair if isinstance(pair, Pair) else Pair(*pair) for pair in states]
        pairs = ffi.new("opipe_state_pair[]", len(given))
        for row, pair in zip(pairs, given):
            row.output, row.input, row.capacity = names[pair.output], names[pair.input], pair.capacity
        keep: List[Any] = []
        copies = ffi.new("uint32_t[]", list(stage_replicas))
        text = cluster.encode() if isinstance(cluster, str) else cluster
        params = library.struct(
            "opipe_plan_params", n_stages=stages, devices=rows, n_devices=len(chosen), n_microbatches=microbatches, replicas=replicas,
            schedule=_text(names, schedule, ffi), cut=_text(names, cut, ffi), batch_dim=_text(names, batch_dim, ffi),
            memory_bytes=bytes_of(memory, "memory"), depth=depth, cost=int(measured),
            flags=(1 if ignore_annotations else 0) | (2 if improve else 0) | (4 if sequence else 0) | (8 if scattered else 0),
            n_ranks=ranks, transport=_text(names, transport, ffi),
            train=ffi.NULL if training is None else training.options(library, names, keep),
            stage_replicas=copies, n_stage_replicas=len(copies), states=pairs, n_states=len(pairs), n_streams=streams,
            generation=ffi.NULL if generation is None else generation.params(library, names), tensor=tensor,
            offload=_text(names, offload, ffi), offload_bytes=bytes_of(offload_memory, "offload_memory"),
        )  # fmt: skip
        if text is not None:
            keep.append(ffi.from_buffer("char[]", text))
            params.cluster, params.cluster_bytes = keep[-1], len(text)
        self._start(bound, library.make("opipe_plan", "plan_make", bound._handle(), params), training)

    def _start(self, model: Model, pointer: Any, training: Optional[Training]) -> None:
        self.model = model
        self.training = training
        self._hold(model._library, pointer, "plan_destroy")
        info = self._library.struct("opipe_plan_info")
        self._library.call("plan_info", pointer, info)
        self._info = info
        options = self._library.struct("opipe_train_options")
        try:
            self._library.call("plan_training", pointer, options)
        except NotFoundError:
            options = None
        self._options: Any = options  # opipe_train_options, whose strings are the plan's

    @classmethod
    def read(cls, model: Model, source: Union[Path, bytes]) -> "Plan":
        """Reads a plan that save() wrote, from a path or bytes, for the same model."""
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                data = file.read()
        else:
            data = bytes(source)
        library = model._library
        own = cls.__new__(cls)
        made = library.make("opipe_plan", "plan_read", model._handle(), library.ffi.from_buffer("char[]", data), len(data))
        own._start(model, made, None)
        return own

    @property
    def context(self) -> Context:
        return self.model.context

    @property
    def trains(self) -> bool:
        """Whether the plan is for training."""
        return self._options is not None

    @property
    def n_stages(self) -> int:
        return int(self._info.n_stages)

    @property
    def n_ranks(self) -> int:
        return int(self._info.n_ranks)

    @property
    def n_microbatches(self) -> int:
        return int(self._info.n_microbatches)

    @property
    def request_seconds(self) -> float:
        """Simulated time of one request, or mini-batch, alone."""
        return float(self._info.request_ns) / 1e9

    @property
    def interval_seconds(self) -> float:
        """Simulated time between requests of a stream, or mini-batches."""
        return float(self._info.interval_ns) / 1e9

    @property
    def bound_seconds(self) -> float:
        """A lower bound on interval_seconds."""
        return float(self._info.bound_ns) / 1e9

    def memory(self, rank: int) -> RankMemory:
        """Predicted memory of a rank."""
        info = self._library.struct("opipe_memory_info")
        self._library.call("plan_memory", self._handle(), rank, info)
        return RankMemory.of(info)

    @property
    def cut_tensors(self) -> List[Tuple[str, int, int]]:
        """(tensor, from stage, to stage) of every boundary tensor."""
        library, found = self._library, []  # type: ignore[var-annotated]
        name, stages = library.ffi.new("const char **"), library.ffi.new("uint32_t[2]")
        while True:
            try:
                library.call("plan_cut_tensor", self._handle(), len(found), name, stages, stages + 1)
            except NotFoundError:
                return found
            found.append((library.plain(name[0]) or "", int(stages[0]), int(stages[1])))

    def describe(self) -> str:
        """Stages, ranks, memory and times, as text."""
        return self._library.text("plan_describe", self._handle(), 0).decode()

    def to_dict(self) -> Dict[str, Any]:
        """The content of describe(), as a dict."""
        found: Dict[str, Any] = json.loads(self._library.text("plan_describe", self._handle(), 1))
        return found

    def to_json(self) -> bytes:
        """The plan as JSON; equal plans give equal bytes."""
        return self._library.text("plan_write", self._handle())

    def save(self, path: Path) -> None:
        """Writes to_json() to a file."""
        data = self.to_json()
        with open(path, "wb") as file:
            file.write(data)

    def annotated(self) -> bytes:
        """The model file with the plan as ONNX annotations (IR 11)."""
        return self._library.text("plan_annotate", self._handle())

    def play(self, form: str = "text") -> str:
        """The predicted run, as "text", "json", "trace" (for Perfetto), "svg" or "html"."""
        params = self._library.struct("opipe_play_params")
        number = choice(form, ("text", "json", "trace", "svg", "html"), "the form")
        return self._library.text("plan_play", self._handle(), params, number).decode()

    def _repr_svg_(self) -> str:
        return self.play("svg")

    def _repr_html_(self) -> str:
        return framed(self.play("html"))

    def __repr__(self) -> str:
        if self.closed:
            return "<onnxpipe.Plan, closed>"
        kind = "training" if self.trains else "inference"
        return f"<onnxpipe.Plan for {kind}: {self.n_stages} stages on {self.n_ranks} ranks, {self.n_microbatches} micro-batches>"


def framed(page: str) -> str:
    """A whole page inside that of a notebook."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 640px; border: 0"></iframe>'


def _text(names: _tensors.Names, value: Optional[str], ffi: Any) -> Any:
    return ffi.NULL if value is None else names[value]
