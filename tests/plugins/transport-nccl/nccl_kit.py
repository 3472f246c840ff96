# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of teams over transport-nccl: processes on the doubles of CUDA and NCCL, each on a GPU of its own; what they print
against the plan's reference; faults at a launch, by phase."""
import json
import os
import re
import sys
import tempfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
from command import BUILD, DATA, need_command  # noqa: E402
from small import write_data, write_model  # noqa: E402
from team_jobs import SLOW, TRAIN, Job  # noqa: E402

DOUBLES = os.path.join(BUILD, "tests", "cuda")
FAULT = "OPIPE_NCCL_DOUBLE_FAULT"
SILENCE = 1
SUMS = "gradients|weights"
LLAMA = os.path.join(DATA, "llama_8block", "model.onnx")


def need_doubles():
    need_command()
    if not os.path.exists(os.path.join(DOUBLES, "libnccl.so.2")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        sys.exit(77)


def job(n, words, one_gpu=False, env=None, report=None):
    """n processes; env: variables of single ranks."""
    common = {"OPIPE_CUDA_PATH": DOUBLES, "OPIPE_PLUGIN_PATH": os.path.join(DOUBLES, "plugins") + ":" + os.path.join(BUILD, "lib", "onnx-pipe"),
              "OPIPE_CUDA_DOUBLE_DEVICES": "4", "OPIPE_CUDA_DOUBLE_ALIKE": "1"}
    common.update({"OPIPE_NCCL_DOUBLE_REPORT": report} if report else {})
    own = {rank: dict(common, OPIPE_CUDA_DOUBLE_SEED=str(rank + 1), **((env or {}).get(rank) or {})) for rank in range(n)}
    more = {rank: ["--device", f"cuda:{0 if one_gpu else rank}"] for rank in range(n)}
    return Job(n, *words, "--fallback", "none", more=more, env=own)


def perceptron(folder):
    """The words that train a small network."""
    model = write_model(os.path.join(folder, "model.onnx"))
    return ["train", model, *write_data(folder), "--batch", "4", "--microbatches", "4"]


def words_of(name, folder):
    if name == "small":
        return perceptron(folder)
    return list(TRAIN) + ["--bind", "seq=8"] if name == "demo" else ["run", LLAMA, "--bind", "batch=2,seq=8", "--requests", "2"]


def counts(path):
    """What the processes' doubles counted, a dictionary each."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(check, name, n, words, sums, seed=1):
    """Against the plan's reference, which process 0 runs: the same bits, or with sums the same within the limits of other orders. No
    connection is made late."""
    what = f"{name}, {n} processes, {' '.join(words)}"
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        env = {rank: {"OPIPE_NCCL_DOUBLE_SEED": str(seed)} for rank in range(n)}
        run = job(n, [*words_of(name, folder), "--transport", "nccl", "--reference", *words], env=env, report=report)
        ended = run.end(seconds=60 * SLOW)
        text = ended[0][1]
        if not check([status for status, _, _ in ended] == [0] * n, f"{what}: {ended}"):
            return
        said = re.search(r"plan's reference +(bit-equal|close)|(identical) to the plan's reference|(close) to the plan's reference", text)
        found = said and next(word for word in said.groups() if word)
        check(found in (("close",) if sums else ("bit-equal", "identical")), f"{what}: {found}: {text[-600:]}")
        seen = counts(report)
        check(len(seen) == n and all(one["late"] == 0 and one["most_in_group"] <= 256 for one in seen), f"{what}: {seen}")
        print(f"{what}: {found}; {seen[0]}", flush=True)
