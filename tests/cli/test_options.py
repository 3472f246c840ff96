#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""Options that name a shape of the pipeline: which go together, which contradict each other."""
import os
import subprocess
import sys
import tempfile

from command import COMMAND, DATA, DONE, REFUSED, USAGE, Count, need_command, run

sys.path.insert(0, os.path.join(DATA, "attacks"))
import wire  # noqa: E402

MODEL = os.path.join(DATA, "demo", "model.onnx")


def exporters(folder):
    """Names with colons, as exporters write them, in --cut."""
    body = wire.graph(
        [wire.node("Abs", "x", "onnx::Add_1"), wire.node("Neg", "onnx::Add_1", "::b"), wire.node("Abs", "::b", "y")],
        [wire.value("x", [2, 2])], [wire.value("y", [2, 2])])
    model = os.path.join(folder, "colons.onnx")
    with open(model, "wb") as file:
        file.write(wire.model(body))
    return [(["plan", model, "--cut", "onnx::Add_1;::b"], DONE, "3 stages"),
            (["plan", model, "--cut", "onnx::Add_1:\\:\\:b"], DONE, "2 stages"),
            (["plan", model, "--cut", "onnx\\:\\:Add_1"], DONE, "2 stages"),
            (["plan", model, "--cut", "onnx:Add_1"], REFUSED, "'onnx'"),
            (["plan", model, "--cut", "onnx::Add_1:"], REFUSED, "a name is missing")]


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        plan = os.path.join(folder, "plan.json")
        whole = ["--plan", plan]
        cases = [
            (["plan", MODEL, "--stages", "2", "--seed", "1", "-o", plan], DONE, "2 ranks"),
            (["run", MODEL, *whole], DONE, "1 request"),
            (["run", MODEL, "--ranks", "2", "--reference"], DONE, "identical to the plan's reference"),
            (["run", MODEL, "--stages", "2", "--replicas", "1,1"], DONE, "1 request"),
            (["run", MODEL, "--stages", "2", "--replicas", "2,1"], DONE, "2+1 replicas of the stages"),
            (["run", MODEL, "--stages", "1", "--device", "cpu", "--device", "cpu:9,memory=1GiB"], REFUSED,
             "2 devices for 1 rank: devices[1], cpu:9, is no rank's"),
            (["run", MODEL, "--device", "cpu:9,memory=1GiB"], REFUSED, "device 9 asked for, there is 1"),
            (["run", MODEL, "--stages", "2", "--cost", "F=40+60"], DONE,
             "predicted (given times of stages): 100.001 ms for one request, 60.000 ms between requests of a "
             "stream; 20.0 % above the lower bound of 50.000 ms"),
            (["run", MODEL, "--stages", "2", "--cost", "F=4+6+5"], REFUSED, "costs of 3 stages for a schedule of 2"),
            (["run", MODEL, "--stages", "2", "--cost", "F=4,comm=1"], REFUSED, "declared by the transport, 'local'"),
            (["run", MODEL, "--stages", "2", "--cost", "F=-4"], USAGE, "a number >= 0 is needed after 'F='"),
            (["run", MODEL, "--stages", "2", "--cost", "flops"], USAGE, "one of rates|measured is needed"),
            (["plan", MODEL, "--stages", "3", "--ranks", "2"], USAGE, "3 stages on 2 ranks"),
            (["run", MODEL, "--stages", "many"], USAGE, "--stages many"),
            (["run", MODEL, "--frob"], USAGE, "onnx-pipe run: unrecognized option '--frob'"),
            (["inspect", MODEL, "-o", plan], USAGE, "onnx-pipe inspect: invalid option -- 'o'"),
            (["run", MODEL, "--check"], USAGE, "model.onnx is a file"),
            (["run", os.path.join(folder, "none"), "--check"], REFUSED, "does not exist"),
            (["run"], USAGE, "0 operands"),
            (["frob"], USAGE, "'frob'"),
        ]
        said = {"schedule": "gpipe", "stages": "2", "ranks": "2", "microbatches": "2", "memory": "1GiB",
                "cut": "x", "device": "cpu", "threads": "1", "depth": "3", "transport": "local",
                "cost": "F=5"}
        for name, value in said.items():
            cases.append((["run", MODEL, *whole, f"--{name}", value], USAGE, f"already settles --{name}"))
        cases += exporters(folder)
        cases += [
            (["run", MODEL, "--replicas", "2,2,2", "--microbatches", "2"], DONE, "3 stages"),
            (["run", MODEL, "--stages", "2", "--replicas", "2,2,2"], USAGE, "3 numbers for 2 stages"),
            (["run", MODEL, "--memory", "0"], USAGE, "--memory 0: a size above 0"),
            (["run", MODEL, "--device", "cpu,memory=0"], USAGE, "memory 0: a size above 0"),
            (["plan", "--help"], DONE, ":: as it is"),
        ]
        for arguments in (["--help"], ["--version"], ["plan", "--help"], ["schedule", "list"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=30, check=False)
            good = done.returncode == REFUSED and b"cannot write the output" in done.stderr
            count.check(f"{' '.join(arguments)} on a full disk", None if good else f"{done.returncode}: {done.stderr}")
        for arguments, status, text in cases:
            result = run(*arguments)
            good = result.status == status and text in result.out + result.err
            wrong = f"{result.status}: {(result.err or result.out)[-300:]}"
            count.check(" ".join(arguments), result.broken(30, 1024) or (None if good else wrong))
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
