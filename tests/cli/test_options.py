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
            (["plan", model, "--cut", "onnx:Add_1"], USAGE, "'onnx'"),
            (["plan", model, "--cut", "onnx::Add_1:"], REFUSED, "a name is missing")]


# Options that contradict each other are named, with both numbers.
SHAPES = [
    (["--replicas", "2,1", "--stages", "3"], USAGE, "--replicas 2,1 --stages 3: replicas of 2 stages are asked for, there are 3 stages on 3 ranks"),
    (["--replicas", "2,1", "--stages", "3", "--schedule", "interleaved"], USAGE,
     "--replicas 2,1 --stages 3 --schedule interleaved: schedule 'interleaved' puts 2 stages on each rank: 3 stages"),
    (["--replicas", "2,1", "--ranks", "4"], REFUSED, "--replicas 2,1 --ranks 4: the replicas asked for take 3 ranks, not 4"),
    (["--replicas", "2,2,2", "--ranks", "4"], REFUSED, "--replicas 2,2,2 --ranks 4: schedule 'gpipe' puts 1 stage on each rank: 3 stages on 2 ranks"),
    (["--replicas", "2", "--ranks", "5"], REFUSED, "--replicas 2 --ranks 5: 2 replicas of the pipeline cannot share 5 ranks"),
    (["--replicas", "4", "--stages", "2", "--ranks", "6", "--microbatches", "3"], USAGE,
     "--replicas 4 --stages 2 --ranks 6 --microbatches 3: 4 replicas of the pipeline cannot share 6 ranks"),
    (["--stages", "3", "--ranks", "2"], USAGE, "--stages 3 --ranks 2: schedule 'gpipe' puts 1 stage on each rank: 3 stages on 2 ranks"),
    (["--stages", "3", "--schedule", "zbv"], REFUSED, "--stages 3 --schedule zbv: schedule 'zbv' puts 2 stages on each rank: 3 stages"),
    (["--stages", "1", "--cut", "ids"], REFUSED, "plan: the cut has 1 boundary, which makes 2 stages, not 1"),
    (["--auto", "--replicas", "2,1"], USAGE, "--replicas 2,1: planner 'auto' decides about single stages; --replicas N, copies"),
    (["--planner", "dapple", "--replicas", "2"], USAGE, "--replicas: planner 'dapple' decides that"),
    (["--planner", "dapple", "--stages", "2"], USAGE, "--stages: planner 'dapple' decides that"),
    (["--auto", "--device", "cpu", "--device", "cpu", "--stages", "3", "--ranks", "2"], REFUSED, "--stages 3 --ranks 2: planner 'auto': no layout with these options exists"),
    (["--auto", "--device", "cpu", "--device", "cpu", "--ranks", "3"], REFUSED, "planner 'auto': 3 ranks on 2 devices"),
    (["--replicas", "2,1", "--cut", "nowhere"], USAGE, "plan: the model has no tensor 'nowhere' to cut at\n"),
]


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
             "2 devices for 1 rank: devices[1], cpu:9, has no rank"),
            (["run", MODEL, "--device", "cpu:9,memory=1GiB"], USAGE, "device 9 asked for, there is 1"),
            (["run", MODEL, "--stages", "2", "--cost", "F=40+60"], DONE,
             "predicted (given times of stages): 100.001 ms for one request, 60.000 ms between requests of a "
             "stream; 20.0 % above the lower bound of 50.000 ms"),
            (["run", MODEL, "--stages", "2", "--cost", "F=4+6+5"], REFUSED, "costs of 3 stages for a schedule of 2"),
            (["run", MODEL, "--stages", "2", "--cost", "F=4,comm=1"], REFUSED, "declared by the transport, 'local'"),
            (["run", MODEL, "--stages", "2", "--cost", "F=-4"], USAGE, "a number >= 0 is needed after 'F='"),
            (["run", MODEL, "--stages", "2", "--cost", "flops"], USAGE, "one of rates|measured is needed"),
            (["plan", MODEL, "--stages", "3", "--ranks", "2"], USAGE, "3 stages on 2 ranks"),
            (["run", MODEL, "--stages", "many"], USAGE, "--stages many"),
            (["run", MODEL, "--check"], USAGE, "model.onnx is a file"),
            (["run", os.path.join(folder, "none"), "--check"], USAGE, "does not exist"),
            (["run"], USAGE, "0 operands"),
            (["frob"], USAGE, "'frob'"),
        ]
        said = {"schedule": "gpipe", "stages": "2", "ranks": "2", "microbatches": "2", "memory": "1GiB",
                "cut": "x", "device": "cpu", "threads": "1", "depth": "3", "transport": "local",
                "cost": "F=5"}
        for name, value in said.items():
            cases.append((["run", MODEL, *whole, f"--{name}", value], USAGE, f"already settles --{name}"))
        cases += exporters(folder)
        cases += [(["run", MODEL, *arguments], status, text) for arguments, status, text in SHAPES]
        cases += [
            (["run", MODEL, "--replicas", "2,2,2", "--microbatches", "2"], DONE, "3 stages"),
            (["run", MODEL, "--stages", "2", "--replicas", "2,2,2"], USAGE, "3 numbers for 2 stages"),
            (["run", MODEL, "--memory", "0"], USAGE, "--memory 0: a size above 0"),
            (["run", MODEL, "--device", "cpu,memory=0"], USAGE, "memory 0: a size above 0"),
            (["plan", "--help"], DONE, "but not before ::"),
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
