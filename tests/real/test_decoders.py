#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full
"""Decoders by ONNX Runtime GenAI's model builder, of random small configurations (decoders.py): prompts of 1, 7 and 64 tokens and
the steps behind each in 1, 2 and 3 stages, keys and values in a buffer of fixed size or growing, whatever shape the plan was made
in: every logit is ONNX Runtime's. The files are kept in build/real/decoders; without build/venv/real and build/venv/genai (./dev
test --all makes them) nothing is tested."""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "cli"), os.path.join(HERE, "..", "examples")]
from command import BUILD, SOURCE, Count  # noqa: E402

try:
    import numpy as np
    from host_cffi import Failed, Library
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

PROMPTS, STEPS, ROOM, LEAST = (1, 7, 64), 8, 80, 12
# stages, keys and values in a buffer, tokens of the request that the plan is made for
PLACES = [(stages, shares, bound_at) for stages in (1, 2, 3) for shares in (False, True) for bound_at in (1, 7)]
TOLERANCE = 1e-4
# A weight of few bits next to rounding; what ONNX Runtime adds up in another order.
FORMATS = {np.dtype(np.float32): (2, 32), np.dtype(np.int64): (0, 64)}


def build(folder):
    """Whatever is not there yet."""
    venvs = [os.path.join(SOURCE, "build", "venv", name) for name in ("real", "genai")]
    packages = glob.glob(os.path.join(venvs[1], "lib", "python3*", "site-packages"))
    python = os.path.join(venvs[0], "bin", "python")
    if not os.path.exists(python) or not packages:
        print("SKIP: build/venv/real with torch and transformers, or build/venv/genai with the builder, is not there")
        sys.exit(77)
    environment = {**os.environ, "PYTHONPATH": packages[0], "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, os.path.join(HERE, "decoders.py"), folder], check=True, env=environment)


class Decoder:
    """A session with one stream."""

    def __init__(self, library, meta, place):
        self.library, self.api, self.ffi, self.meta, self.keep = library, library.api, library.ffi, meta, []
        self.handles, self.stages, self.shares, self.bound_at = [], *place
        self.shapes = {name: [one, heads, rows or (ROOM if self.shares else 0), width] for name, (one, heads, rows, width) in meta["empty"].items()}

    def open(self, path):
        library = self.library
        context = self.handle("context_destroy", "opipe_context", "context_create", self.ffi.NULL)
        model = self.handle("model_destroy", "opipe_model", "model_load", context, library.new("opipe_load_params", path=self.text(path)))
        bound = self.handle("model_destroy", "opipe_model", "model_bind", model, self.bound())
        plan = self.handle("plan_destroy", "opipe_plan", "plan_make", bound, self.planned())
        self.session = self.handle("session_close", "opipe_session", "session_open", context, plan,
                                   library.new("opipe_session_params", max_shapes=64, max_in_flight=2))
        self.state = library.make("opipe_state", "session_state_open", self.session, self.ffi.NULL)
        self.names = self.inputs(bound)

    def handle(self, destroy, kind, function, *arguments):
        made = self.library.make(kind, function, *arguments)
        self.handles.insert(0, (getattr(self.api, destroy), made))
        return made

    def close(self):
        for destroy, handle in self.handles:
            destroy(handle)

    def text(self, text):
        self.keep.append(self.ffi.new("char[]", text.encode()))
        return self.keep[-1]

    def array(self, kind, values):
        self.keep.append(self.ffi.new(kind + "[]", values))
        return self.keep[-1]

    def bound(self):
        at = self.bound_at
        past = ROOM if self.shares else at
        window = next((shape[2] for shape in self.meta["empty"].values() if shape[2] > 0), 0)
        dims = {"batch_size": 1, "sequence_length": at, "past_sequence_length": past, "total_sequence_length": at if self.shares else 2 * past}
        dims.update(kv_cache_dim=next(iter(self.meta["empty"].values()))[3])
        if window:
            dims.update(past_sliding_length=window)
        made = self.array("opipe_dim", [{"name": self.text(name), "value": size} for name, size in dims.items()])
        return self.library.new("opipe_bind_options", flags=self.library.lib.OPIPE_BIND_DEFAULTS, dims=made, n_dims=len(dims),
                                dims_stride=self.ffi.sizeof("opipe_dim"))

    def planned(self):
        pairs = [{"input": self.text(past), "output": self.text(present), "capacity": int(np.prod([n or ROOM for n in self.meta["empty"][past]]))}
                 for past, present in self.meta["pairs"]]
        device = self.array("opipe_device_choice", [{"kind": self.text("cpu"), "threads": 1}])
        return self.library.new("opipe_plan_params", n_stages=self.stages, devices=device, n_devices=1, states=self.array("opipe_state_pair", pairs),
                                n_states=len(pairs), states_stride=self.ffi.sizeof("opipe_state_pair"),
                                devices_stride=self.ffi.sizeof("opipe_device_choice"))

    def inputs(self, bound):
        counts, info = self.library.new("opipe_model_info"), self.library.new("opipe_tensor_info")
        self.library.check(self.api.model_info(bound, counts, self.library.error))
        found = []
        for i in range(counts.n_inputs):
            self.library.check(self.api.model_input(bound, i, info, self.library.error))
            found.append(self.ffi.string(info.name).decode())
        return found

    def io(self, name, array, hold):
        code, bits = FORMATS[array.dtype]
        hold += [self.ffi.new("char[]", name.encode()), self.ffi.new("int64_t[]", array.shape), self.ffi.from_buffer(array) if array.size else self.ffi.new("char[8]")]
        return {"name": hold[-3], "tensor": {"data": self.ffi.cast("void *", hold[-1]), "device_type": 1, "rank": array.ndim,
                                             "dtype": {"code": code, "bits": bits, "lanes": 1}, "shape": hold[-2]}}

    def ask(self, tokens, past, vocabulary):
        """Logits of `tokens` behind `past` others."""
        n, hold = len(tokens), []
        feeds = {"input_ids": tokens[None].copy(), "attention_mask": np.ones((1, past + n), dtype=np.int64),
                 "position_ids": np.arange(past, past + n, dtype=np.int64)[None].copy()}
        feeds = {name: value for name, value in feeds.items() if name in self.names}
        if past == 0:
            feeds.update((name, np.zeros(shape, dtype=np.float32)) for name, shape in self.shapes.items())
        logits = np.empty((1, n, vocabulary), dtype=np.float32)
        ins = self.ffi.new("opipe_binding_io[]", [self.io(name, value, hold) for name, value in feeds.items()])
        out = self.ffi.new("opipe_binding_io[]", [self.io("logits", logits, hold)])
        hold.append(feeds)
        request = self.library.make("opipe_request", "session_submit", self.session, self.library.new(
            "opipe_submit_params", n_inputs=len(feeds), n_outputs=1, io_stride=self.ffi.sizeof("opipe_binding_io"), inputs=ins, outputs=out, state=self.state))
        try:
            self.library.check(self.api.request_wait(request, 20 * 10**9, self.library.error))
        finally:
            self.api.request_release(request)
        return logits[0]

    def decode(self, folder, prompt):
        """The error of a prompt of so many tokens, or of a step behind it; None: none."""
        tokens, wanted = (np.load(os.path.join(folder, f"{what}_{prompt}.npy")) for what in ("tokens", "logits"))
        self.library.check(self.api.state_reset(self.state, self.library.error))
        past = 0
        for step in range(STEPS):
            n = prompt if step == 0 else 1
            found = self.ask(tokens[past:past + n], past, wanted.shape[1])
            right = wanted[past:past + n]
            off = float(np.abs(found - right).max() / np.abs(right).max())
            if not off <= TOLERANCE:
                return f"prompt of {prompt}, step {step}: {off:.1e} off"
            past += n
        return None


def try_one(library, folder, meta, place):
    decoder = Decoder(library, meta, place)
    try:
        decoder.open(os.path.join(folder, "model.onnx"))
        return next(filter(None, (decoder.decode(folder, prompt) for prompt in PROMPTS)), None)
    except Failed as failed:
        return str(failed)
    finally:
        decoder.close()


def main():
    count = Count()
    library = Library(os.path.join(BUILD, "generated", "opipe", "cdef.h"), os.path.join(BUILD, "lib", "libonnxpipe.so"))
    root = os.environ.get("REAL_DECODERS") or os.path.join(SOURCE, "build", "real", "decoders")
    if "REAL_DECODERS" not in os.environ:
        build(root)
    folders = sorted(glob.glob(os.path.join(root, "*", "meta.json")))
    for path in folders:
        with open(path, encoding="utf-8") as file:
            meta = json.load(file)
        folder = os.path.dirname(path)
        for place in PLACES:
            stages, shares, bound_at = place
            where = f"{os.path.basename(folder)}: {stages} stages, {'a buffer' if shares else 'grown'}, bound at {bound_at}"
            count.check(where, try_one(library, folder, meta, place))
    count.check("enough decoders", None if len(folders) >= LEAST else f"only {len(folders)} were built")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
