# SPDX-License-Identifier: Apache-2.0
"""Inside ONNX Runtime: its sessions with our provider against its own CPU provider.

    PYTHON_WITH_ONNXRUNTIME sessions.py ADAPTER SOURCE_DIR SHARED_DIR WORK_DIR few|all [TEST...]

Run by test_ort.py and test_ort_full.py, for every version of ONNX Runtime that is here. Prints what
failed; the exit status is the number of failures.
"""

import glob
import os
import sys
import time

import onnx
import onnxruntime
from onnx import numpy_helper

import graphs
import options
from inside import ADAPTER, ALL, CLOSE, NAME, SHARED, SOURCE, WORK, check, compare, counts, demo, devices, failures, ids, session

# ---- models with data of their own, as in the ONNX backend tests ----

NOT_ALL_OURS = "explicitly disabled"  # what ONNX Runtime says where a node would be its CPU provider's


def read_tensor(path):
    with open(path, "rb") as file:
        return numpy_helper.to_array(onnx.load_tensor_from_string(file.read()))


def cases():
    """(model, folder of data) of every model here and in the shared folder; odd/ is left out, which ends the process of
    ONNX Runtime itself."""
    found = []
    folders = [os.path.join(SOURCE, "tests", "data", part) for part in ("*", "old/*", "real/*", "small/*")]
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


# Results that the operator's text leaves open: the mask of a Dropout that drops nothing, the elements that one drops
# in training.
OPEN = ("/old/dropout_10_mask/model.onnx", "/gpt2/train_dropout/model.onnx")


def compare_model(name, model, data):
    """In 1, 2 and 3 stages with the graph as it is in the CPU provider, which changes what quantised graphs compute where
    it may change them. How many runs were compared; -1: not all of it is ours."""
    tried = 0
    plain = session(model, graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    fed = inputs_of(plain, data)
    wanted = plain.run(None, fed)
    close = CLOSE if "gpt2" in name or "llama" in name else None
    for stages in (1, 2, 3):
        try:
            ours = session(model, {"stages": stages})
            compare("%s, %d stages" % (name, stages), ours.run(None, fed), wanted, close)
            tried += 1
        except Exception as error:
            text = str(error)
            if stages == 1 and NOT_ALL_OURS in text:
                return -1
            if stages > 1 and "stages" in text and "nodes" in text:
                continue  # fewer nodes than stages
            check(False, name, stages, "stages:", text[:300])
    return tried


def test_models():
    tried, models, theirs = 0, 0, []
    list_of = cases()
    if not ALL:
        chosen = [c for c in list_of if os.sep + "demo" + os.sep in c[0]]
        list_of = chosen + [c for c in list_of if "/bert_toy/" in c[0] or "/gpt_past/" in c[0]]
    for model, data in list_of:
        name = os.path.relpath(model, SOURCE)
        try:
            session(model).run(None, inputs_of(session(model), data))
        except Exception as error:  # ORT itself has no such operator, or type
            print("left out:", name, str(error)[:120].replace("\n", " "))
            continue
        n = compare_model(name, model, data) if not name.endswith(OPEN) else 0
        if n < 0:
            theirs.append(name)
        models += n > 0
        tried += max(n, 0)
    print("models: %d, %d runs compared; not all ours: %s" % (models, tried, " ".join(theirs) or "none"))
    least = 2 if not ALL else 170 if os.path.isdir(SHARED) else 70
    check(models >= least, "models that were compared:", models, "not", least)
    check(not theirs, "models that are not all ours:", theirs)


# ---- one small transformer, in every way that ORT takes it ----


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
    domains = {node.domain for node in onnx.load(fused).graph.node}
    check("com.microsoft" in domains, "nothing was fused:", domains)
    none = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for what, model in (("bytes", content), ("external", external), ("fused", fused)):
        for copies in ("lent", "copy"):
            for level in ({}, {"graph_optimization_level": none}):
                ours = session(model, {"stages": 2, "weights": copies}, **level)
                compare("%s, %s, %s" % (what, copies, level), ours.run(None, ids(2, 9)), wanted, CLOSE)
    there = os.getcwd()
    os.chdir(WORK)  # a path without a folder
    ours = session("external.onnx", {"stages": 2})
    compare("a bare name", ours.run(None, ids(2, 9)), wanted, CLOSE)
    os.chdir(there)


def test_whole():
    made = session(demo(), {"stages": 2})
    check(made.get_providers()[0] == NAME, "providers", made.get_providers())


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_open_and_close():
    before, held = 0, (0, 0)
    for i in range(200 if ALL else 12):
        made = session(demo(), {"stages": 2})
        made.run(None, ids(1, 8))
        del made
        if i == (40 if ALL else 8):
            before, held = resident(), handles()
    grown = resident() - before
    check(grown < 24 << 20, "sessions grew by", grown, "bytes")
    check(handles() == held, "files and threads after sessions:", handles(), "not", held)


def main():
    onnxruntime.register_execution_provider_library("onnx-pipe", ADAPTER)
    check(len(devices()) == 1, "devices", devices())
    for test in (test_whole, test_sources, *options.TESTS, *graphs.TESTS, test_open_and_close, test_models):
        if sys.argv[6:] and test.__name__ not in sys.argv[6:]:
            continue
        started = time.time()
        try:
            test()
        except Exception as error:
            check(False, test.__name__, type(error).__name__, str(error)[:500])
        print(test.__name__, "done, %.1f s" % (time.time() - started), flush=True)
    print(
        "onnxruntime %s: %d sessions, %d runs compared, %d failures"
        % (onnxruntime.__version__, counts["sessions"], counts["runs"], len(failures))
    )
    return min(len(failures), 100)


if __name__ == "__main__":
    sys.exit(main())
