#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host in Python: opens the library with ctypes, needs nothing else but numpy.

Loads a model folder in the ONNX backend-test layout, cuts the model into stages, sends every data
set through the pipeline and compares. The classes mirror opipe/host.h, as far as they are used.

usage: host_numpy.py LIBRARY MODEL_DIR [STAGES]        exit status: 0 equal, 1 different, 3 failed
"""
import ctypes as c
import glob
import os
import sys

import numpy as np

MAJOR, MINOR, PENDING, LOG_WARN, BIND_DEFAULTS, FOREVER = 1, 0, 1, 1, 2, 2**64 - 1
# DLPack's type codes: int, uint, float, bool.
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
KINDS = {code: kind for kind, code in CODES.items()}


def struct(title, /, **fields):
    return type(title, (c.Structure,), {"_fields_": list(fields.items())})


U32, U64, I64, PTR, TEXT = c.c_uint32, c.c_uint64, c.c_int64, c.c_void_p, c.c_char_p
# fmt: off
Error = struct("Error", struct_size=U32, status=c.c_int32, domain=U32, native=c.c_int32,
               message=c.c_char * 496)
View = struct("View", struct_size=U32, abi_major=c.c_uint16, abi_minor=c.c_uint16, structs=PTR,
              n_structs=U32, struct_row_bytes=U32)
Tensor = struct("Tensor", data=PTR, device_type=c.c_int32, device_id=c.c_int32, rank=c.c_int32,
                code=c.c_uint8, bits=c.c_uint8, lanes=c.c_uint16, shape=c.POINTER(I64), strides=PTR,
                byte_offset=U64)
Fence = struct("Fence", kind=U32, reserved=U32, handle=PTR)
Binding = struct("Binding", name=TEXT, tensor=Tensor, ready=Fence, done=Fence)
Context = struct("Context", struct_size=U32, log_level=U32, allocator=PTR, log_ctx=PTR, log=PTR,
                 plugin_paths=PTR, budgets=PTR, n_plugin_paths=U32, n_budgets=U32,
                 budgets_stride=U32, cores=U32, flags=U32, reserved=U32)
Load = struct("Load", struct_size=U32, flags=U32, path=TEXT, data=PTR, n_bytes=U64, base_dir=TEXT,
              memory_budget_bytes=U64)
Dim = struct("Dim", name=TEXT, value=I64)
Bind = struct("Bind", struct_size=U32, flags=U32, dims=c.POINTER(Dim), pins=PTR, n_dims=U32,
              n_pins=U32, dims_stride=U32, pins_stride=U32, keep=PTR, n_keep=U32, reserved=U32)
Info = struct("Info", struct_size=U32, dtype=U32, name=TEXT, shape=c.POINTER(I64),
              dim_names=c.POINTER(TEXT), rank=U32, flags=U32, index_limit=I64)
Counts = struct("Counts", struct_size=U32, bound=U32, n_inputs=U32, n_outputs=U32, n_file_nodes=U32,
                n_nodes=U32, n_annotated_stages=U32, n_dims=U32, parameter_elems=U64,
                parameter_bytes=U64, flops=c.c_double)
Device = struct("Device", kind=TEXT, options=TEXT, memory_bytes=U64, index=U32, threads=U32)
PlanParams = struct("PlanParams", struct_size=U32, n_stages=U32, devices=c.POINTER(Device),
                    n_devices=U32, devices_stride=U32, n_microbatches=U32, replicas=U32,
                    schedule=TEXT, cut=TEXT, batch_dim=TEXT, memory_bytes=U64, depth=U32, cost=U32,
                    flags=U32, n_ranks=U32, transport=TEXT)
SessionParams = struct("SessionParams", struct_size=U32, threads=U32, flags=U32, max_in_flight=U32,
                       watchdog_ns=U64, spin_us=U32, max_shapes=U32)
Submit = struct("Submit", struct_size=U32, n_inputs=U32, n_outputs=U32, io_stride=U32,
                inputs=c.POINTER(Binding), outputs=c.POINTER(Binding), stream=U64, deadline_ns=U64)

# The table's functions in their order: name, result, arguments before the error.
OUT = c.POINTER(PTR)
STATUS = c.c_int32
FUNCTIONS = [
    ("context_create", STATUS, [PTR, OUT]), ("context_destroy", None, [PTR]),
    ("context_register_static", STATUS, [PTR, PTR]),
    ("context_plugins", STATUS, [PTR, U32, PTR, PTR]),
    ("model_load", STATUS, [PTR, c.POINTER(Load), OUT]), ("model_destroy", None, [PTR]),
    ("model_bind", STATUS, [PTR, c.POINTER(Bind), OUT]),
    ("model_info", STATUS, [PTR, c.POINTER(Counts)]),
    ("model_input", STATUS, [PTR, U32, c.POINTER(Info)]),
    ("model_output", STATUS, [PTR, U32, c.POINTER(Info)]), ("model_dim", STATUS, [PTR, U32, PTR]),
    ("model_describe", STATUS, [PTR, U32, PTR, PTR]),
    ("plan_make", STATUS, [PTR, c.POINTER(PlanParams), OUT]),
    ("plan_read", STATUS, [PTR, PTR, U64, OUT]), ("plan_write", STATUS, [PTR, PTR, PTR]),
    ("plan_describe", STATUS, [PTR, U32, PTR, PTR]), ("plan_annotate", STATUS, [PTR, PTR, PTR]),
    ("plan_info", STATUS, [PTR, PTR]), ("plan_memory", STATUS, [PTR, U32, PTR]),
    ("plan_cut_tensor", STATUS, [PTR, U32, PTR, PTR, PTR]), ("plan_destroy", None, [PTR]),
    ("session_open", STATUS, [PTR, PTR, c.POINTER(SessionParams), OUT]),
    ("session_close", None, [PTR]), ("session_submit", STATUS, [PTR, c.POINTER(Submit), OUT]),
    ("request_poll", STATUS, [PTR]), ("request_wait", STATUS, [PTR, U64]),
    ("request_cancel", STATUS, [PTR]), ("request_output", STATUS, [PTR, U32, c.POINTER(Tensor)]),
    ("request_release", None, [PTR]), ("session_drive", STATUS, [PTR, U32, U64]),
]
# fmt: on


def table(functions):
    head = {"struct_size": U32, "abi_major": c.c_uint16, "abi_minor": c.c_uint16, "version": TEXT}
    return struct("Table", **head, **{name: PTR for name, _, _ in functions})


class Failed(Exception):
    """An error of the library, with its message and status."""


def sized(kind, **fields):
    types = dict(kind._fields_)
    arrays = {"io_stride": "inputs", "dims_stride": "dims", "devices_stride": "devices"}
    for stride, array in arrays.items():  # from element to element, as they are laid out here
        if stride in types:
            fields[stride] = c.sizeof(types[array]._type_)
    return kind(struct_size=c.sizeof(kind), **fields)


def failed(status, error):
    return Failed(f"{error.message.decode()} (status {status})")


class Library:
    """The table's functions as methods; a failure becomes an exception with the library's text."""

    minor, functions = MINOR, FUNCTIONS  # the least minor that has these functions

    def __init__(self, path):
        library = c.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        found, error = c.POINTER(table(self.functions))(), sized(Error)
        # No layout fingerprints: nothing was compiled, the structs above are vouched for.
        view = sized(View, abi_major=MAJOR, abi_minor=self.minor)
        status = library.opipe_get_api(c.byref(view), c.byref(found), c.byref(error))
        if status != 0:
            raise failed(status, error)
        self.version = found.contents.version.decode()
        for name, result, arguments in self.functions:
            address = getattr(found.contents, name)
            if result is None:
                setattr(self, name, c.CFUNCTYPE(None, *arguments)(address))
            else:
                function = c.CFUNCTYPE(result, *arguments, c.POINTER(Error))(address)
                setattr(self, name, self.checked(function))

    @staticmethod
    def checked(function):
        def call(*arguments):
            error = sized(Error)
            status = function(*arguments, c.byref(error))
            if status < 0:
                raise failed(status, error)
            return status

        return call

    def make(self, function, *arguments):
        """For functions whose last argument is the handle that they make."""
        handle = PTR()
        getattr(self, function)(*arguments, c.byref(handle))
        return handle


def view(array):
    """A numpy array as the library sees it; the array must outlive the view."""
    if not array.flags.c_contiguous:
        raise ValueError("only dense arrays are passed on")
    shape = (I64 * max(array.ndim, 1))(*array.shape)
    return Tensor(
        data=array.ctypes.data,
        device_type=1,
        rank=array.ndim,
        code=CODES[array.dtype.kind],
        bits=array.itemsize * 8,
        lanes=1,
        shape=shape,
    )


def copied(tensor):
    """The numbers of a host tensor in a new array."""
    shape = tensor.shape[: tensor.rank]
    kind = np.dtype(f"{KINDS[tensor.code]}{tensor.bits // 8}")
    count = int(np.prod(shape, dtype=np.int64))
    data = c.string_at(tensor.data + tensor.byte_offset, count * kind.itemsize) if count else b""
    return np.frombuffer(data, kind).reshape(shape).copy()


def bindings(arrays):
    return (Binding * max(len(arrays), 1))(
        *(Binding(name=name.encode(), tensor=view(array)) for name, array in arrays.items())
    )


class Pipeline:
    """One model, planned and opened: `stages` ranks with `threads` compute threads each, `replicas` times;
    these take requests in turn. `host`: with one rank, requests run on the thread that waits for them, not
    on one of the library's."""

    def __init__(
        self,
        library,
        path,
        dims=None,
        stages=1,
        threads=1,
        in_flight=0,
        host=False,
        replicas=1,
        kind=b"cpu",
    ):
        self.library, self.handles, self.host, self.kind = library, [], host, kind
        try:
            self.open(path, dims or {}, stages, threads, in_flight, replicas)
        except Failed:
            self.close()
            raise

    def keep(self, destroy, function, *arguments):
        handle = self.library.make(function, *arguments)
        self.handles.append((destroy, handle))
        return handle

    def open(self, path, dims, stages, threads, in_flight, replicas):
        settings = sized(Context, log_level=LOG_WARN)
        context = self.keep("context_destroy", "context_create", c.byref(settings))
        load = sized(Load, path=path.encode())
        model = self.keep("model_destroy", "model_load", context, c.byref(load))
        pairs = (Dim * max(len(dims), 1))(*(Dim(n.encode(), v) for n, v in dims.items()))
        bind = sized(Bind, flags=BIND_DEFAULTS, dims=pairs, n_dims=len(dims))
        bound = self.keep("model_destroy", "model_bind", model, c.byref(bind))
        device = Device(kind=self.kind, threads=threads)
        params = sized(
            PlanParams, n_stages=stages, replicas=replicas, devices=c.pointer(device), n_devices=1
        )
        plan = self.keep("plan_destroy", "plan_make", bound, c.byref(params))
        session = sized(
            SessionParams, threads=int(self.host), max_in_flight=in_flight, spin_us=2**32 - 1
        )
        self.session = self.keep("session_close", "session_open", context, plan, c.byref(session))
        counts = sized(Counts)
        self.library.model_info(bound, c.byref(counts))
        self.inputs = [self.info("model_input", bound, i) for i in range(counts.n_inputs)]
        self.outputs = [self.info("model_output", bound, i) for i in range(counts.n_outputs)]

    def info(self, function, model, index):
        """Name and shape of an input or output."""
        info = sized(Info)
        getattr(self.library, function)(model, index, c.byref(info))
        return info.name.decode(), tuple(info.shape[: info.rank])

    def submit(self, inputs, outputs=None):
        """Starts a request; None: the pipeline is full. Arrays must live until it has finished."""
        given, wanted = bindings(inputs), bindings(outputs or {})
        params = sized(
            Submit, n_inputs=len(inputs), n_outputs=len(outputs or {}), inputs=given, outputs=wanted
        )
        request = PTR()
        if self.library.session_submit(self.session, c.byref(params), c.byref(request)) == PENDING:
            return None
        return request, given, wanted

    def finish(self, submitted):
        self.wait(submitted[0])
        self.library.request_release(submitted[0])

    def wait(self, request):
        # One that was driven to its end beside another has nothing left to be driven for.
        while self.host and self.library.request_poll(request) == PENDING:
            self.library.session_drive(self.session, 0, FOREVER)
        self.library.request_wait(request, FOREVER)

    def run(self, inputs):
        """One request: {name: array} in, {name: array} out."""
        request = self.submit(inputs)[0]
        try:
            self.wait(request)
            results, tensor = {}, Tensor()
            for i, (name, _) in enumerate(self.outputs):
                self.library.request_output(request, i, c.byref(tensor))
                results[name] = copied(tensor)
            return results
        finally:
            self.library.request_release(request)

    def close(self):
        while self.handles:
            destroy, handle = self.handles.pop()
            getattr(self.library, destroy)(handle)


def read_tensor(path):
    """(name, array) of a TensorProto file with raw bytes: fields 1 dims, 2 type, 8 name, 9 data."""
    with open(path, "rb") as file:
        data, at = file.read(), 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    dims, fields = [], {}
    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        if key >> 3 == 1:
            dims += [value]
        fields[key >> 3] = value
    kind = {1: "f4", 6: "i4", 7: "i8", 9: "b1", 11: "f8"}[fields[2]]
    return fields[8].decode(), np.frombuffer(fields[9], kind).reshape(dims)


def data_set(folder):
    return [
        dict(read_tensor(path) for path in sorted(glob.glob(os.path.join(folder, f"{kind}_*.pb"))))
        for kind in ("input", "output")
    ]


def main(library_path, folder, stages="1"):
    library, worst = Library(library_path), 0.0
    found = sorted(glob.glob(os.path.join(folder, "test_data_set_*")))
    if not found:
        raise Failed(f"{folder} holds no test_data_set_K")
    for sets in found:
        inputs, wanted = data_set(sets)
        batch, seq = next(iter(inputs.values())).shape[:2]
        pipeline = Pipeline(
            library, os.path.join(folder, "model.onnx"), {"batch": batch, "seq": seq}, int(stages)
        )
        try:
            got = pipeline.run(inputs)
        finally:
            pipeline.close()
        for name, b in wanted.items():
            if got[name].shape != b.shape or got[name].dtype != b.dtype:
                print(f"{name}: {got[name].dtype}{got[name].shape}, expected {b.dtype}{b.shape}")
                return 1
            worst = max(worst, float(np.abs(got[name] - b).max() / np.abs(b).max()))
    print(f"onnx-pipe {library.version}, {stages} stages: largest difference {worst:.1e} of max")
    return 0 if worst <= 1e-4 else 1


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        sys.exit(main(*sys.argv[1:]))
    except Failed as reason:
        print(f"host_numpy.py: {reason}", file=sys.stderr)
        sys.exit(3)
