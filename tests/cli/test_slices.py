#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run in token slices: data sets checked, the plan's reference and the uncut model compared, plans
written and run again, masks of Dropout, training with cuts within attentions, and what cannot be
sliced."""
import json
import os
import tempfile

from command import DATA, DONE, REFUSED, Count, need_command, run

GPT = os.path.join(DATA, "gpt_8block")
LLAMA = os.path.join(DATA, "llama_8block")
HOW = ["--bind", "batch=4,seq=12", "--reference", "--requests", "5"]
CASES = [
    (GPT, ["terapipe:slices=3", "--stages", "2"]),
    (GPT, ["terapipe:lengths=7+3+2", "--stages", "4", "--microbatches", "2"]),
    (GPT, ["seq1f1b:slices=4", "--stages", "3", "--microbatches", "3", "--no-fuse"]),
    (LLAMA, ["seq1f1b:slices=2", "--stages", "2", "--replicas", "2", "--microbatches", "2"]),
    (LLAMA, ["terapipe:slices=5", "--stages", "1"]),
    (os.path.join(DATA, "odd", "dropout_tokens"),
     ["terapipe:slices=4", "--stages", "2", "--microbatches", "4", "--dropout", "graph"]),
    (os.path.join(DATA, "odd", "dropout_tokens"),
     ["gpipe", "--stages", "2", "--microbatches", "3", "--dropout", "0.3"]),
]
REFUSALS = [
    (["encoder", "terapipe:slices=2"], "tokens cannot be sliced: it is not causal: row 0 may read token 1"),
    (["gpt_8block", "terapipe:lengths=7+3"], "the slices have 10 tokens, the model's sequences 12"),
    (["gpt_8block", "terapipe:slices=13"], "13 slices of 12 tokens"),
    (["vision", "terapipe"], "no input has a free token dimension"),
]

TRAIN = ["--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--batch", "2", "--microbatches", "2",
         "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--steps", "2", "--reference"]


def wrong(result, *texts):
    problem = result.broken(60, 1024)
    if not problem and (result.status != DONE or any(text not in result.out for text in texts)):
        problem = f"status {result.status}: {(result.err or result.out)[-300:]}"
    return problem


def main():
    need_command()
    count = Count()
    for folder, (schedule, *more) in CASES:
        result = run("run", os.path.join(folder, "model.onnx"), *HOW, "--schedule", schedule, *more)
        problem = wrong(result, "identical to the plan's reference")
        if not problem and schedule != "gpipe" and " token slices" not in result.out:
            problem = "the plan does not say that it has slices"
        count.check(f"{os.path.basename(folder)}, {schedule}", problem)
    for past in ("0", "5"):
        result = run("run", os.path.join(DATA, "gpt_past", "model.onnx"), "--stages", "2", "--reference",
                     "--bind", f"batch=2,seq=7,past={past}", "--schedule", "terapipe:lengths=4+2+1")
        count.check(f"keys and values of {past} tokens", wrong(result, "identical to the plan's reference"))
    for folder in (GPT, LLAMA):
        result = run("run", folder, "--check", "--schedule", "terapipe:slices=3", "--stages", "2")
        count.check(f"data sets of {os.path.basename(folder)}", wrong(result, "passed"))
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        result = run("run", os.path.join(GPT, "model.onnx"), *HOW, "--schedule", "terapipe:slices=3",
                     "--stages", "2", "--microbatches", "2", "--trace", trace)
        problem = wrong(result)
        if not problem:
            with open(trace, encoding="utf-8") as file:
                names = [e["name"] for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
            wanted = {f"F stage {s}, micro-batch {m}, slice {k}" for s in (0, 1) for m in (0, 1) for k in (0, 1, 2)}
            problem = None if set(names) == wanted else f"a trace of {sorted(set(names))}"
        count.check("a trace names slices", problem)
        model, plan = os.path.join(GPT, "model.onnx"), os.path.join(folder, "plan.json")
        result = run("plan", model, "--bind", "batch=4,seq=12", "--stages", "3", "--schedule",
                     "terapipe:lengths=6+4+2", "--output", plan)
        count.check("a plan in slices is written", wrong(result))
        result = run("run", model, "--plan", plan, *HOW)
        count.check("and run", wrong(result, "identical to the plan's reference"))
    for n_stages in ("5", "6", "11"):  # without fusing some of these cut between scores and values
        result = run("train", os.path.join(DATA, "demo", "model.onnx"), *TRAIN, "--no-fuse", "--stages",
                     n_stages, "--schedule", "seq1f1b:slices=3")
        count.check(f"trained in {n_stages} stages, cut within attentions",
                    wrong(result, "bit-equal", "uncut model"))
    for (name, schedule), text in REFUSALS:
        bind = [] if name == "vision" else ["--bind", "batch=4,seq=12"]
        result = run("run", os.path.join(DATA, name, "model.onnx"), *bind, "--stages", "2",
                     "--schedule", schedule)
        good = result.status == REFUSED and text in result.err
        count.check(f"{name}, {schedule}", None if good else f"{result.status}: {result.err[:300]}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
