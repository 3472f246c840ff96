# SPDX-License-Identifier: Apache-2.0
"""Speed of inference in bf16: one request after another (bin/gpu-latency), the median behind the first, on both sides."""
import glob
import json
import os
import statistics

import gpt2
import profile_kernels
from bundle_kit import COMMAND, HERE, SMALL, Failed, Line, NotRun, ceilings, command, peer, work
from train import LEAST, T, VOCABULARY, ids_of, model_of

REQUESTS = 4 if SMALL else 100
WARM_UPS = 1 if SMALL else 5
PAST = 40 if SMALL else 512


def latency(model, tokens, options, clock):
    """Median seconds of a request."""
    library = glob.glob(os.path.join(HERE, "lib", "libonnxpipe.so*"))[0]
    out = command([os.path.join(HERE, "bin", "gpu-latency"), library, model, str(tokens), str(VOCABULARY), str(REQUESTS + WARM_UPS), options],
                  clock)
    return statistics.median(json.loads(out)["seconds"][WARM_UPS:])


def beside(said, ours, clock, *arguments):
    """Adds PyTorch's milliseconds and the ratio; NotRun keeps ours."""
    try:
        theirs = statistics.median(peer(clock, *arguments, REQUESTS)["seconds"])
    except (NotRun, Failed) as why:
        raise type(why)(str(why), said=said) from why
    return {**said, "pytorch_ms": round(1e3 * theirs, 3), "ratio": round(theirs / ours, 4)}


def prefill(options):
    """One sample; and the throughput of a stream, with two requests in flight."""
    def line(clock):
        model = model_of(LEAST, serves=True)
        told = json.loads(command([COMMAND, "run", model, "--device", "cuda" + ("," + options if options else ""), "--stages", "1",
                                   "--input", "ids=" + ids_of(1), "--requests", str(REQUESTS), "--json"], clock))
        return {"ms": round(1e3 * latency(model, T, options, clock), 3), "stream_ms": round(1e3 * told["seconds"] / REQUESTS, 3)}
    return line


def prefill_beside(clock):
    """As graphs on both sides."""
    ours = latency(model_of(LEAST, serves=True), T, "graphs=1", clock)
    return beside({"ms": round(1e3 * ours, 3)}, ours, clock, "prefill", LEAST, T)


def decode(shape):
    """One token behind a cache: bytes of weights and cache over the time, of what a copy moves (read and written); PyTorch's cache
    stands still."""
    def line(clock):
        path = work("gpt2-%s-decode.onnx" % shape)
        n_bytes = gpt2.write(path, shape, 1, VOCABULARY, serves=True, past=PAST)
        ours = latency(path, 1, "graphs=1", clock)
        rate = n_bytes / ours / 1e9
        said = {"ms": round(1e3 * ours, 3), "gb_per_s": round(rate, 1),
                "of_copies": round(rate / max(ceilings(clock)["copy_read_and_write_gb_per_s"], 1e-6), 4)}
        return said if SMALL else beside(said, ours, clock, "decode", shape, PAST)
    return line


def early(shape):
    """The same with launches that begin while others end, and with such as wait."""
    def line(clock):
        path = work("gpt2-%s-decode.onnx" % shape)
        gpt2.write(path, shape, 1, VOCABULARY, serves=True, past=PAST)
        ms = {pdl: 1e3 * latency(path, 1, "graphs=1,pdl=%d" % pdl, clock) for pdl in (1, 0)}
        return {"ms": round(ms[1], 3), "pdl_0_ms": round(ms[0], 3), "of_pdl_0": round(ms[0] / ms[1], 4)}
    return line


def decode_kernels(shape):
    """The kernels of a step, launched one by one."""
    def line(clock):
        path = work("gpt2-%s-decode.onnx" % shape)
        gpt2.write(path, shape, 1, VOCABULARY, serves=True, past=PAST)
        library = glob.glob(os.path.join(HERE, "lib", "libonnxpipe.so*"))[0]
        return profile_kernels.kernels([os.path.join(HERE, "bin", "gpu-latency"), library, path, "1", str(VOCABULARY), "4", ""], 4, clock)
    return line


LINES = [
    Line("prefill of 124M at 1 x 1024", prefill(""), 60),
    Line("prefill of 124M at 1 x 1024, as graphs", prefill("graphs=1"), 60),
    Line("prefill beside PyTorch", prefill_beside, 150, {"ratio": 1.05}),
    Line("a decode step of 1B at past 512", decode(LEAST if SMALL else "1B"), 150, {"of_copies": 0.6, "ratio": 1.2}),
    Line("a decode step of 1B, pdl=1 beside 0", early(LEAST if SMALL else "1B"), 120, {"of_pdl_0": 1.0}),
    Line("a decode step of 1B, its kernels", decode_kernels(LEAST if SMALL else "1B"), 90),
    Line("a decode step of 7B at past 512", decode(LEAST if SMALL else "7B"), 180, {"of_copies": 0.8, "ratio": 1.2}),
]
