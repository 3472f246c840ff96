#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Micro-batches of what exporters write: every committed export of tests/data/real and the hand-built
models of tests/data/odd/batch_*, split in two and in four, run, trained and sliced; defaults of the
batch and of lengths; and what the message of a refused split says."""
import json
import os
import sys

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run

REAL = os.path.join(DATA, "real")
ODD = os.path.join(DATA, "odd")


def wrong(result, status=DONE, texts=()):
    problem = result.broken(60, 1024)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-500:]}"
    missing = [text for text in texts if text not in result.err]
    return f"not in the message: {missing}: {result.err[:400]}" if missing else None


def folders(root, prefix=""):
    for name in sorted(os.listdir(root)):
        if name.startswith(prefix) and os.path.exists(os.path.join(root, name, "model.onnx")):
            yield name, os.path.join(root, name)


def inference(count, name, folder, numbers=("2", "4")):
    """Each data set against its outputs, the plan's stages by a plain loop, the uncut model. In four
    micro-batches those of the exports' first set hold one sample: an axis of 1 may be any."""
    for number in numbers:
        result = run("run", folder, "--check", "--reference", "--stages", "2", "--threads", "1",
                     "--microbatches", number)  # fmt: skip
        count.check(f"{name}, {number} micro-batches", wrong(result))


def training_data(folder, meta, number):
    base = os.path.join(folder, f"test_data_set_{number}")
    arguments = ["--loss", f"cross-entropy:logits={meta['outputs'][0]},labels=labels"]
    for i, name in enumerate([*meta["inputs"]]):
        arguments += ["--data", f"{name}={base}/input_{i}.pb"]
    return arguments + ["--data", f"labels={base}/labels.pb"]


def training(count, name, folder, meta, numbers=("2", "4")):
    """Two steps; set 1 has five rows: micro-batches of two rows and of one."""
    common = ["--steps", "2", "--reference", "--threads", "1", "--optimizer", "sgd:lr=0.05"]
    for data_set, number in enumerate(numbers):
        result = run("train", os.path.join(folder, "model.onnx"), *common, "--stages", "2",
                     "--microbatches", number, *training_data(folder, meta, data_set))  # fmt: skip
        count.check(f"{name}, trained in {number} micro-batches", wrong(result))
    if not meta["causal"]:
        return
    for data_set, number in enumerate(numbers):
        result = run("train", os.path.join(folder, "model.onnx"), *common, "--schedule",
                     "terapipe:slices=2", "--microbatches", number, "--stages", "2",
                     *training_data(folder, meta, data_set))  # fmt: skip
        count.check(f"{name}, trained in slices of {number} micro-batches", wrong(result))


def one_export(count, name, folder, meta):
    if meta["mixes"]:
        result = run("run", folder, "--stages", "1", "--microbatches", "2")
        texts = ("does not carry the axis", "node '", "--batch-dim")
        count.check(f"{name} mixes its samples", wrong(result, REFUSED, texts))
        return
    inference(count, name, folder)
    training(count, name, folder, meta)


def exports(count):
    for name, folder in folders(REAL):
        with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
            one_export(count, name, folder, json.load(file))


def hand_built(count):
    for name, folder in folders(ODD, "batch_"):
        expect = os.path.join(folder, "expect.txt")
        refused = os.path.exists(expect) and "microbatches" in open(expect, encoding="utf-8").read()
        if refused:
            continue
        inference(count, name, folder, ("2",))
        result = run("run", os.path.join(folder, "model.onnx"), "--reference", "--stages", "2",
                     "--threads", "1", "--microbatches", "3",
                     *(["--batch-dim", "s72"] if name == "batch_not_all" else []))  # fmt: skip
        count.check(f"{name}, single samples", wrong(result))


def dims_of(result):
    return [i["shape"] for i in json.loads(result.out)["inputs"]] if result.status == DONE else None


def defaults(count):
    """With nothing said the batch is as large as the micro-batches need, and sounds are as long as
    their convolutions need."""
    text = os.path.join(REAL, "gpt2-dynamo", "model.onnx")
    sound = os.path.join(REAL, "wav2vec2-legacy", "model.onnx")
    for command in ("run", "plan"):
        result = run(command, text, "--stages", "2", "--microbatches", "3")
        count.check(f"{command}: rows for three micro-batches", wrong(result))
    result = run("plan", text, "--stages", "1", "--microbatches", "3", "--json")
    made = json.loads(result.out) if result.status == DONE else {}
    rows = f"rows {made.get('batch_rows')} of {made.get('batch_dim')}"
    count.check("the batch is named by all its dimensions",
                None if rows == "rows 3 of s72,s43" else rows)  # fmt: skip
    for arguments in (["run", sound, "--stages", "1"], ["inspect", "--train", sound]):
        count.check(f"{arguments[0]}: a length that convolutions accept",
                    wrong(run(*arguments), DONE, ["nothing shorter fits"]))  # fmt: skip


def messages(count):
    text = os.path.join(REAL, "gpt2-dynamo", "model.onnx")
    folder = os.path.join(ODD, "batch_apart")
    result = run("plan", text, "--stages", "1", "--microbatches", "2", "--batch-dim", "s72")
    count.check("half of the batch", wrong(result, REFUSED,
                ["along 's72'", "'input_ids'", "--batch-dim", "s43=2"]))  # fmt: skip
    result = run("plan", text, "--stages", "1", "--microbatches", "2", "--batch-dim", "s72,s43")
    count.check("a list of names", wrong(result))
    result = run("plan", text, "--stages", "1", "--microbatches", "2", "--batch-dim", "s72,no")
    count.check("a name that is not there", wrong(result, USAGE, ["'no'", "s43=2"]))
    result = run("plan", text, "--bind", "s43=3", "--microbatches", "2", "--batch-dim", "s72,s43")
    count.check("names of two lengths", wrong(result, REFUSED, ["'s43' is 3", "2"]))
    result = run("plan", os.path.join(folder, "model.onnx"), "--bind", "s72=2,s43=2",
                 "--microbatches", "3")  # fmt: skip
    count.check("fewer rows than micro-batches", wrong(result, REFUSED, ["3 micro-batches", "2 rows"]))
    result = run("run", "--help")
    count.check("the help", None if "--batch-dim NAME[,NAME...]" in result.out else result.out)


def main():
    need_command()
    count = Count()
    exports(count)
    hand_built(count)
    defaults(count)
    messages(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
