# SPDX-License-Identifier: Apache-2.0
"""Inside ONNX Runtime: its sessions with our provider against its own CPU provider.

    PYTHON_WITH_ONNXRUNTIME sessions.py ADAPTER SOURCE_DIR SHARED_DIR WORK_DIR few|all

Run by test_ort.py and test_ort_full.py, for every version of ONNX Runtime that is here. Prints what
failed; the exit status is the number of failures.
"""

import glob
import os
import sys
import threading

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ADAPTER, SOURCE, SHARED, WORK, EXTENT = sys.argv[1:6]
NAME = "OnnxPipeExecutionProvider"
ALL = EXTENT == "all"
failures = []
counts = {"sessions": 0, "runs": 0}


def check(good, *what):
    if not good:
        failures.append(" ".join(str(part) for part in what))
        print("FAILED:", failures[-1])


def devices():
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME][:1]


def session(model, own=None, **options):
    """own: options of the provider, None: ORT's CPU provider alone."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for key, value in options.items():
        setattr(settings, key, value)
    counts["sessions"] += 1
    if own is None:
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    settings.add_provider_for_devices(devices(), {k: str(v) for k, v in own.items()})
    return onnxruntime.InferenceSession(model, settings)


def taken(model, own, **options):
    """Is there a node that is ours? The session must then refuse to do without it."""
    settings = dict(options)
    made = session(model, own, **settings)
    return made


def difference(found, wanted):
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if found.size == 0:
        return 0.0
    a, b = found.astype(numpy.float64), wanted.astype(numpy.float64)
    scale = numpy.max(numpy.abs(b))
    return float(numpy.max(numpy.abs(a - b)) / (scale + 1.0 if scale < 1 else scale))


def tolerance(array):
    return {"float32": 1e-4, "float64": 1e-4, "float16": 3e-3}.get(str(array.dtype), 0)


def compare(what, found, wanted, most=None):
    check(len(found) == len(wanted), what, "outputs", len(found), len(wanted))
    for i, (a, b) in enumerate(zip(found, wanted)):
        bound = tolerance(b) if most is None or b.dtype != numpy.float32 else most
        away = difference(a, b)
        check(away <= bound, what, "output", i, "differs by", away, "of", bound)
    counts["runs"] += 1


# ---- models with data of their own, as in the ONNX backend tests ----


def read_tensor(path):
    with open(path, "rb") as file:
        return numpy_helper.to_array(onnx.load_tensor_from_string(file.read()))


def cases():
    """(model, {input: array})"""
    found = []
    folders = [os.path.join(SOURCE, "tests", "data", "*")]
    if os.path.isdir(SHARED):
        folders.append(os.path.join(SHARED, "models", "graphs", "*"))
        folders.append(os.path.join(SHARED, "models", "modern", "*", "*"))
    for pattern in folders:
        for folder in sorted(glob.glob(pattern)):
            model = os.path.join(folder, "model.onnx")
            for data in sorted(glob.glob(os.path.join(folder, "test_data_set_*")))[:1]:
                if os.path.exists(model) and glob.glob(os.path.join(data, "input_*.pb")):
                    found.append((model, data))
    return found


def inputs_of(made, data):
    names = [i.name for i in made.get_inputs()]
    files = [os.path.join(data, "input_%d.pb" % i) for i in range(len(names))]
    return {n: read_tensor(f) for n, f in zip(names, files) if os.path.exists(f)}


def test_models():
    tried = 0
    list_of = cases()
    if not ALL:
        chosen = [c for c in list_of if os.sep + "demo" + os.sep in c[0]]
        list_of = chosen + [c for c in list_of if "/bert_toy/" in c[0] or "/gpt_past/" in c[0]]
    for model, data in list_of:
        name = os.path.relpath(model, SOURCE)
        try:
            plain = session(model)
            fed = inputs_of(plain, data)
            wanted = plain.run(None, fed)
        except Exception as error:  # ORT itself has no such operator, or type
            print("left out:", name, str(error)[:120].replace("\n", " "))
            continue
        for stages in (1, 2, 3):
            try:
                ours = session(model, {"stages": stages})
                compare("%s, %d stages" % (name, stages), ours.run(None, fed), wanted)
                tried += 1
            except Exception as error:
                text = str(error)
                if stages > 1 and "stages" in text and "nodes" in text:
                    continue  # fewer nodes than stages
                check(False, name, stages, "stages:", text[:300])
    print("models: %d runs compared" % tried)
    check(tried > 0, "no model was compared")


# ---- one small transformer, in every way that ORT takes it ----


def demo():
    return os.path.join(SOURCE, "tests", "data", "gpt_8block", "model.onnx")


def ids(batch, seq):
    rows = numpy.arange(batch * seq, dtype=numpy.int64).reshape(batch, seq)
    return {"input_ids": (rows * 7 + 3) % 50}


def test_sources():
    plain = session(demo())
    wanted = plain.run(None, ids(2, 9))
    with open(demo(), "rb") as file:
        content = file.read()
    external = os.path.join(WORK, "external.onnx")
    onnx.save_model(
        onnx.load(demo()),
        external,
        save_as_external_data=True,
        location="external.bin",
        size_threshold=64,
    )
    fused = os.path.join(WORK, "fused.onnx")
    session(
        demo(),
        optimized_model_filepath=fused,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    )
    none = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for what, model in (("bytes", content), ("external", external), ("fused", fused)):
        for copies in ("lent", "copy"):
            ours = session(model, {"stages": 2, "weights": copies})
            compare("%s, %s" % (what, copies), ours.run(None, ids(2, 9)), wanted, 1e-5)
    ours = session(demo(), {"stages": 2}, graph_optimization_level=none)
    compare("as it is", ours.run(None, ids(2, 9)), wanted, 1e-5)


def test_whole():
    """The whole graph is ours: with no way back to the CPU provider the session can be made."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings.add_provider_for_devices(devices(), {"stages": "2"})
    made = onnxruntime.InferenceSession(demo(), settings)
    check(made.get_providers()[0] == NAME, "providers", made.get_providers())


def test_threads():
    plain = session(demo())
    shapes = [(1, 4), (2, 8), (1, 17), (3, 5), (1, 1), (2, 12)]
    wanted = {shape: plain.run(None, ids(*shape)) for shape in shapes}
    ours = session(demo(), {"stages": 2, "threads": 1, "shapes": 8})
    bad = []

    def call(first):
        for i in range(200 if ALL else 20):
            shape = shapes[(first + i) % len(shapes)]
            try:
                if difference(ours.run(None, ids(*shape))[0], wanted[shape][0]) > 1e-5:
                    bad.append(shape)
            except Exception as error:
                bad.append(str(error))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not bad, "threads:", bad[:3])
    counts["runs"] += 8 * (200 if ALL else 20)


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_open_and_close():
    before = 0
    for i in range(200 if ALL else 12):
        made = session(demo(), {"stages": 2})
        made.run(None, ids(1, 8))
        del made
        if i == (40 if ALL else 8):
            before = resident()
    grown = resident() - before
    check(grown < 24 << 20, "sessions grew by", grown, "bytes")


def raises(what, part, call):
    try:
        call()
    except Exception as error:
        check(part in str(error), what, "says:", str(error)[:400])
        return
    check(False, what, "was accepted")


def test_refusals():
    raises("a cap", "exceeds its cap", lambda: session(demo(), {"memory": "10KiB"}))
    raises("stages", "stages=x is no number", lambda: session(demo(), {"stages": "x"}))
    raises("memory", "memory=much is no size", lambda: session(demo(), {"memory": "much"}))
    raises("partition", "known are whole and auto", lambda: session(demo(), {"partition": "no"}))
    raises("a library", "/no/such.so", lambda: session(demo(), {"library": "/no/such.so"}))
    raises("a schedule", "nosuch", lambda: session(demo(), {"schedule": "nosuch"}))
    raises("a plan", "/no/plan.json", lambda: session(demo(), {"plan": "/no/plan.json"}))
    ours = session(demo(), {"stages": 2})
    raises("an index", "onnx-pipe", lambda: ours.run(None, {"input_ids": ids(1, 4)["input_ids"] + 9999}))
    stop = onnxruntime.RunOptions()
    stop.terminate = True
    raises("a run that is over", "terminate", lambda: ours.run(None, ids(1, 4), stop))
    compare("after it", ours.run(None, ids(1, 4)), session(demo()).run(None, ids(1, 4)), 1e-5)


def test_trace():
    path = os.path.join(WORK, "trace.json")
    made = session(demo(), {"stages": 2, "trace": path})
    made.run(None, ids(1, 8))
    del made
    check(os.path.getsize(path) > 500, "no trace")


def test_parts():
    """A node that we do not have stays with ORT: right results in parts, and without us."""
    numbers = numpy.random.default_rng(1)
    weights = [
        numpy_helper.from_array(numbers.standard_normal((16, 16)).astype(numpy.float32), "w%d" % i)
        for i in range(4)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Tanh", ["c"], ["d"]),
        helper.make_node("Unique", ["d"], ["e", "", "f", ""], sorted=1, axis=0),
        helper.make_node("MatMul", ["e", "w2"], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("MatMul", ["h", "w3"], ["i"]),
        helper.make_node("Add", ["i", "h"], ["j"]),
        helper.make_node("Gather", ["j", "f"], ["k"]),
        helper.make_node("Add", ["k", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content = model.SerializeToString()
    fed = {"x": numbers.standard_normal((5, 16)).astype(numpy.float32)}
    wanted = session(content).run(None, fed)
    for partition in ("whole", "auto"):
        ours = session(content, {"partition": partition})
        for _ in range(2):
            compare("parts, " + partition, ours.run(None, fed), wanted, 1e-5)


def main():
    onnxruntime.register_execution_provider_library("onnx-pipe", ADAPTER)
    check(len(devices()) == 1, "devices", devices())
    for test in (
        test_whole,
        test_sources,
        test_parts,
        test_refusals,
        test_trace,
        test_threads,
        test_open_and_close,
        test_models,
    ):
        try:
            test()
        except Exception as error:
            check(False, test.__name__, type(error).__name__, str(error)[:500])
        print(test.__name__, "done")
    print(
        "onnxruntime %s: %d sessions, %d runs compared, %d failures"
        % (onnxruntime.__version__, counts["sessions"], counts["runs"], len(failures))
    )
    return min(len(failures), 100)


if __name__ == "__main__":
    sys.exit(main())
