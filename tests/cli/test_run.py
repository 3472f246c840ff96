#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run: folders with data sets, what --check may not pass over, --pin by type, one JSON document, names of
any length."""
import json
import os
import shutil
import struct
import sys
import tempfile

from command import CHECK_FAILED, DATA, DONE, REFUSED, USAGE, Count, need_command, run
from test_train import npy

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

DEMO = os.path.join(DATA, "demo")
ONE = ["--stages", "1"]


def wrong(result, status=DONE, *texts):
    problem = result.broken(100, 2048)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-300:]}"
    lacking = [text for text in texts if text not in result.err + result.out]
    return f"not said: {lacking}: {(result.err + result.out)[-300:]}" if lacking else None


def copy(folder, name, sets=("0", "1")):
    """The demo's folder with data sets of these numbers."""
    out = os.path.join(folder, name)
    os.mkdir(out)
    os.symlink(os.path.join(DEMO, "model.onnx"), os.path.join(out, "model.onnx"))
    for i, number in enumerate(sets):
        shutil.copytree(os.path.join(DEMO, f"test_data_set_{i % 2}"), os.path.join(out, f"test_data_set_{number}"))
    return out


def spoil(folder, name="output_0.pb"):
    """Other values in an output of a data set."""
    path = os.path.join(folder, name)
    with open(path, "r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(struct.pack("<16f", *[9e9] * 16))


def sets(count, folder):
    """Every data set is compared, whatever its number; none without outputs or inputs passes."""
    check = ["--check", *ONE]
    gaps = copy(folder, "gaps", ("3", "10", "0"))
    result = run("run", gaps, *check)
    problem = wrong(result)
    order = [line.split(":")[0] for line in result.out.splitlines() if line.startswith("test_data_set_")]
    if not problem and order != ["test_data_set_0", "test_data_set_3", "test_data_set_10"]:
        problem = f"compared {order}"
    count.check("numbers with gaps", problem)
    spoil(os.path.join(gaps, "test_data_set_10"))
    count.check("a difference behind a gap", wrong(run("run", gaps, *check), CHECK_FAILED, "test_data_set_10: FAILED"))
    empty = copy(folder, "empty", ("0",))
    for name in os.listdir(os.path.join(empty, "test_data_set_0")):
        if name.startswith("output_"):
            os.remove(os.path.join(empty, "test_data_set_0", name))
    count.check("no outputs", wrong(run("run", empty, *check), USAGE, "test_data_set_0 has no output"))
    lacking = copy(folder, "lacking", ("0", "1"))
    os.remove(os.path.join(lacking, "test_data_set_1", "input_0.pb"))
    count.check("no input", wrong(run("run", lacking, *check), USAGE, "test_data_set_1 has no tensor for input"))
    for number in ("0", "1"):
        shutil.copy(os.path.join(DEMO, "test_data_set_0", "output_0.pb"), os.path.join(lacking, f"test_data_set_{number}", "input_7.pb"))
    both = wrong(run("run", lacking, *ONE), USAGE, *(f"test_data_set_{n}{os.sep}input_7.pb: the model has no input" for n in "01"))
    count.check("a tensor of no input", both)
    behind = copy(folder, "behind", ("0",))
    base = os.path.join(behind, "test_data_set_0")
    shutil.copy(os.path.join(base, "output_0.pb"), os.path.join(base, "output_7.pb"))
    spoil(base, "output_7.pb")
    count.check("an output behind a gap", wrong(run("run", behind, *check), CHECK_FAILED, "test_data_set_0: FAILED"))
    for text, status in (('{"note": {"tolerance": 1e30}}', CHECK_FAILED), ('{"tolerance" : 1e30}', DONE),
                         ('{"tolerance": "much"}', REFUSED), ('{"tolerance": 1', REFUSED)):
        with open(os.path.join(gaps, "meta.json"), "w", encoding="ascii") as file:
            file.write(text)
        count.check(f"meta.json {text}", wrong(run("run", gaps, *check), status))
    path = os.path.join(folder, "x.npy")
    with open(path, "wb") as file:
        file.write(npy((1, 4), "<i8", struct.pack("<4q", 1, 2, 3, 4)))
    given = ["--input", f"input_ids={path}"]
    for refused, status, text in (
            (["--replicas", "2,1", "--stages", "3"], USAGE, "replicas of 2 stages"), (["--stages", "2", "--ranks", "3"], USAGE, "on 3 ranks"),
            (["--bind", "nonsense"], USAGE, "DIM=N is needed"), (["--bind", "none=2"], USAGE, "no free dimension 'none'"),
            (["--pin", "none=2"], USAGE, "no input 'none'; its inputs are 'input_ids'"), (["--auto", "--cut", "x"], USAGE, "decides that"),
            (["--budget", "1"], USAGE, "needs a planner"), (["--replicas", "x"], USAGE, "from 1 to 4096"),
            (["--schedule", "none"], USAGE, "there is no schedule 'none'")):
        for more in ([], ["--check"], ["--json"]):
            result = run("run", DEMO, *refused, *more)
            problem = wrong(result, status, text)
            lines = result.err.count("\n")
            count.check(f"{refused} {more} of two data sets", problem or (f"said {lines} times: {result.err}" if lines != 1 else None))
    count.check("--input beside data sets", wrong(run("run", DEMO, *given, *ONE), USAGE, "already give the inputs"))
    count.check("--input twice", wrong(run("run", os.path.join(DEMO, "model.onnx"), *given, *given, *ONE), USAGE,
                                       "is given already"))


def documents(count, folder):
    """One JSON document, whatever is compared; its verdicts are those of the status."""
    gaps = copy(folder, "gaps", ("0", "5"))
    good = run("run", gaps, "--check", "--reference", "--stages", "2", "--json")
    problem = wrong(good)
    if not problem:
        report = json.loads(good.out)["data_sets"]
        if [s["name"] for s in report] != ["test_data_set_0", "test_data_set_5"]:
            problem = str(report)[:300]
        elif not all(s["passed"] and s["check"][0]["passed"] and s["reference"]["identical"] and
                     s["plan"]["stages"] and s["requests"] == 1 and s["outputs"][0]["shape"] for s in report):
            problem = str(report)[:300]
    count.check("data sets", problem)
    spoil(os.path.join(gaps, "test_data_set_5"))
    for how in ("max", "element"):
        bad = run("run", gaps, f"--check={how}", *ONE, "--json")
        problem = wrong(bad, CHECK_FAILED, "  logits: ")
        if not problem and [s["passed"] for s in json.loads(bad.out)["data_sets"]] != [True, False]:
            problem = bad.out[-300:]
        count.check(f"data sets, --check={how}", problem)
    model = os.path.join(DEMO, "model.onnx")
    result = run("run", model, "--reference", "--stages", "2", "--requests", "4", "--json")
    problem = wrong(result)
    if not problem:
        report = json.loads(result.out)
        late = report["latency_ms"]
        if not (report["reference"]["close"] and report["requests"] == 4 and report["outputs"] and report["plan"]):
            problem = str(report)[:300]
        elif not late["p50"] <= late["p90"] == late["p99"] >= late["mean"]:
            problem = f"of 4 requests: {late}"
    count.check("a model", problem)
    refused = run("run", model, "--schedule", "none-such", "--json")
    count.check("nothing where it is refused", wrong(refused, USAGE) or (refused.out or None))


def one_input(path, dtype, name="x", shape=(1,), output="y"):
    body = wire.graph([wire.node("Identity", name, output)], [wire.value(name, list(shape), dtype)],
                      [wire.value(output, list(shape), dtype)])
    with open(path, "wb") as file:
        file.write(wire.model(body))
    return path


TYPES = {"float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "double": 11,
         "uint64": 13, "bfloat16": 16}
FITS = {"int64": [("-9223372036854775808", -9223372036854775808), ("12", 12)], "int8": [("-128", -128)],
        "uint8": [("255", 255)], "uint64": [("7", 7)], "int32": [("2147483647", 2147483647)],
        "bool": [("true", 1), ("0", 0)], "float": [("1.5", 1.5), ("1e3", 1000), ("-inf", None)],
        "double": [("2.5e-3", 0.0025), ("nan", None)],
        "float16": [("1.5", 1.5), ("65504", 65504), ("6e-8", 5.9604645e-08), ("1.00048828125", 1)],
        "bfloat16": [("-2.5", -2.5), ("3e38", 3.00405527e38)]}
REFUSES = {"int64": ["1e3", "1.5", "nan", "0x10", "99999999999999999999", "", "true", "9223372036854775808"],
           "int8": ["128", "-129"], "uint8": ["256", "-1"], "uint64": ["18446744073709551616", "-1"],
           "int32": ["2147483648"], "bool": ["2", "yes", "1.0", "-1"], "float": ["1e39", "1.5x", "0x10", ""],
           "double": ["1e999", "one"], "float16": ["65520", "1e5", "half"], "bfloat16": ["3.4e38", "x"]}


def pins(count, folder):
    """A number that a type cannot hold is refused, never cut; messages name the input, the text and the
    type."""
    for name, number in TYPES.items():
        model = one_input(os.path.join(folder, name + ".onnx"), number)
        for text, value in FITS[name]:
            result = run("run", model, "--pin", f"x={text}", *ONE, "--json")
            problem = wrong(result)
            if not problem:
                found = json.loads(result.out)["outputs"][0]["first"][0]
                if found != value and not (value and found and abs(found - value) <= 1e-5 * abs(value)):
                    problem = f"it is {found}"
            count.check(f"--pin {name}={text}", problem)
        for text in REFUSES[name]:
            says = ["--pin x", f"'{text}'", {"float": "float32", "double": "float64"}.get(name, name)]
            count.check(f"--pin {name}={text!r}", wrong(run("run", model, "--pin", f"x={text}", *ONE), USAGE, *says))


def names(count, folder):
    """Names may have any length; a name that begins with a dot is a file of that name."""
    long = "x" * 300
    model = one_input(os.path.join(folder, "long.onnx"), TYPES["float"], name=long, output="y" * 300)
    count.check("a name of 300 bytes", wrong(run("run", model, "--reference", *ONE), DONE, "y" * 300))
    path = os.path.join(folder, "x.npy")
    with open(path, "wb") as file:
        file.write(npy((1,), "<f4", struct.pack("<f", 3)))
    result = run("run", model, "--input", f"{long}={path}", *ONE, "--json")
    problem = wrong(result) or (None if json.loads(result.out)["outputs"][0]["first"] == [3] else result.out[-200:])
    count.check("the same, given", problem)
    for output, file in ((".y", ".y.npy"), ("a.b", "a.b.npy"), ("..", "%2E%2E.npy"), ("a/b", "a%2Fb.npy")):
        model = one_input(os.path.join(folder, "dots.onnx"), TYPES["float"], output=output)
        where = os.path.join(folder, "out" + str(len(file)) + file[0])
        problem = wrong(run("run", model, "--output", where, *ONE))
        count.check(f"output {output}", problem or (None if os.listdir(where) == [file] else str(os.listdir(where))))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for part in (sets, documents, pins, names):
            own = os.path.join(folder, part.__name__)
            os.mkdir(own)
            part(count, own)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
