#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host in Python by cffi: the installed opipe/cdef.h declares everything, so nothing is written again by hand.

The model's inputs are integers; each is 1. One request goes through the pipeline.

usage: host_cffi.py CDEF LIBRARY MODEL [STAGES]
"""
import sys

import cffi


class Failed(Exception):
    """An error of the library, with its message."""


class Library:
    def __init__(self, cdef, path):
        self.ffi = cffi.FFI()
        with open(cdef, encoding="utf-8") as file:
            self.ffi.cdef(file.read())
        self.lib = self.ffi.dlopen(path)
        self.error = self.new("opipe_error")
        # No layout fingerprints: cdef.h is of one version of the headers, as its first lines say.
        view = self.new("opipe_view", abi_major=self.lib.OPIPE_ABI_MAJOR, abi_minor=self.lib.OPIPE_ABI_MINOR)
        found = self.ffi.new("const opipe_api **")
        self.check(self.lib.opipe_get_api(view, found, self.error))
        self.api = found[0]

    def new(self, struct, **fields):
        """A params or info struct of that size; all else that is not given is 0."""
        made = self.ffi.new(struct + " *", fields)
        made.struct_size = self.ffi.sizeof(struct)
        return made

    def check(self, status):
        if status < 0:
            raise Failed(self.ffi.string(self.error.message).decode())
        return status

    def make(self, kind, function, *arguments):
        """For functions that make a handle, which is the argument before the error."""
        out = self.ffi.new(kind + " **")
        self.check(getattr(self.api, function)(*arguments, out, self.error))
        return out[0]


def dense(ffi, info, keep):
    """An input of ones. `keep` holds what the tensor points to."""
    n = 1
    for d in range(info.rank):
        n *= info.shape[d]
    wide = {7: "int64_t[]", 6: "int32_t[]"}  # ONNX's numbers of int64 and int32
    if info.dtype not in wide:
        raise Failed(f"input {ffi.string(info.name).decode()}: this example has no data of type {info.dtype}")
    data = ffi.new(wide[info.dtype], [1] * n)
    keep.append(data)
    bits = 64 if info.dtype == 7 else 32
    return {"data": ffi.cast("void *", data), "device_type": 1, "rank": info.rank,
            "dtype": {"code": 0, "bits": bits, "lanes": 1}, "shape": info.shape}


def run(library, path, n_stages):
    api, ffi, lib = library.api, library.ffi, library.lib
    keep = [ffi.new("char[]", path.encode())]
    context = library.make("opipe_context", "context_create", ffi.NULL)
    model = library.make("opipe_model", "model_load", context, library.new("opipe_load_params", path=keep[0]))
    bound = library.make("opipe_model", "model_bind", model, library.new("opipe_bind_options", flags=lib.OPIPE_BIND_DEFAULTS))
    plan = library.make("opipe_plan", "plan_make", bound, library.new("opipe_plan_params", n_stages=n_stages))
    session = library.make("opipe_session", "session_open", context, plan, ffi.NULL)
    counts, info = library.new("opipe_model_info"), library.new("opipe_tensor_info")
    library.check(api.model_info(bound, counts, library.error))
    inputs = ffi.new("opipe_binding_io[]", counts.n_inputs)
    for i in range(counts.n_inputs):
        library.check(api.model_input(bound, i, info, library.error))
        inputs[i].name = info.name
        inputs[i].tensor = dense(ffi, info, keep)
    request = library.make("opipe_request", "session_submit", session, library.new(
        "opipe_submit_params", n_inputs=counts.n_inputs, inputs=inputs, io_stride=ffi.sizeof("opipe_binding_io")))
    library.check(api.request_wait(request, 2**64 - 1, library.error))
    output = ffi.new("opipe_tensor *")
    library.check(api.request_output(request, 0, output, library.error))
    shape = [output.shape[d] for d in range(output.rank)]
    print(f"{n_stages} stages, output 0 of shape {shape}, begins with {ffi.cast('float *', output.data)[0]:g}")
    api.request_release(request)
    api.session_close(session)
    for handle, destroy in ((plan, api.plan_destroy), (bound, api.model_destroy), (model, api.model_destroy),
                            (context, api.context_destroy)):
        destroy(handle)


def main():
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    run(Library(sys.argv[1], sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
