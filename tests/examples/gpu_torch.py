#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host in PyTorch: tensors on the GPU go in and come out by DLPack's pointers, on PyTorch's stream.

The ids are made on the GPU and the results are looked at there: the model runs between two pieces of
PyTorch's work without a copy. Each result is compared with that of the same request from host memory.

usage: gpu_torch.py LIBRARY MODEL [REQUESTS]   exit status: 0 equal, or "not run: no GPU"; 1 different, 3 failed
"""
import ctypes as c
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from host_numpy import I64, PTR, Binding, Failed, Fence, Library, Pipeline, Submit, Tensor, sized

CUDA, NATIVE_STREAM, INT, FLOAT = 2, 2, 0, 2


def find_torch():
    """PyTorch with a GPU; else why there is none."""
    try:
        import torch
    except ImportError as error:
        return None, str(error)
    return (torch, "") if torch.cuda.is_available() else (None, f"torch {torch.__version__} sees none")


def lent(name, tensor, stream):
    """A torch tensor as the library sees it, with PyTorch's stream as its fences; the tensor must
    outlive the request. `__dlpack__` would say the same: a pointer, a device, a shape, strides."""
    shape, strides = (I64 * tensor.dim())(*tensor.shape), (I64 * tensor.dim())(*tensor.stride())
    view = Tensor(
        data=tensor.data_ptr(),
        device_type=CUDA,
        device_id=tensor.get_device(),
        rank=tensor.dim(),
        code=FLOAT if tensor.is_floating_point() else INT,
        bits=tensor.element_size() * 8,
        lanes=1,
        shape=shape,
        strides=c.cast(strides, PTR),
    )
    fence = Fence(kind=NATIVE_STREAM, handle=stream)  # 0: the default stream
    binding = Binding(name=name.encode(), tensor=view, ready=fence, done=fence)
    return binding, shape, strides


def request(pipeline, torch, ids):
    """One request on the GPU; the result is there for whatever the stream is given next."""
    stream = torch.cuda.current_stream().cuda_stream
    (name, _), (output, shape) = pipeline.inputs[0], pipeline.outputs[0]
    result = torch.empty(shape, dtype=torch.float32, device=ids.device)
    given, wanted = lent(name, ids, stream), lent(output, result, stream)
    params = sized(
        Submit,
        n_inputs=1,
        n_outputs=1,
        inputs=c.pointer(given[0]),
        outputs=c.pointer(wanted[0]),
    )
    handle = PTR()
    pipeline.library.session_submit(pipeline.session, c.byref(params), c.byref(handle))
    pipeline.finish((handle,))  # a host in C calls request_queued, and does not wait for the GPU
    return result


def run(torch, pipeline, n_requests):
    (name, shape), (output, _) = pipeline.inputs[0], pipeline.outputs[0]
    n_equal = 0
    for _ in range(n_requests):
        ids = torch.randint(0, 32, shape, dtype=torch.int64, device="cuda:0")
        result = request(pipeline, torch, ids)
        probabilities = result.softmax(-1)  # PyTorch goes on where the model ended
        host = pipeline.run({name: ids.cpu().numpy()})[output]
        equal = torch.equal(result.cpu(), torch.from_numpy(host)) and bool(probabilities.isfinite().all())
        n_equal += equal
    print(f"{n_requests} requests of PyTorch tensors, {n_equal} with the bits of host memory")
    return 0 if n_equal == n_requests else 1


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    torch, why = find_torch()
    if torch is None:
        print(f"not run: no GPU ({why})")
        return 0
    try:
        pipeline = Pipeline(Library(sys.argv[1]), sys.argv[2], kind=b"cuda")
    except Failed as error:
        print(error, file=sys.stderr)
        return 3
    try:
        return run(torch, pipeline, int(sys.argv[3]) if len(sys.argv) > 3 else 8)
    finally:
        pipeline.close()


if __name__ == "__main__":
    sys.exit(main())
