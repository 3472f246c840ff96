#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""Orders of files that leave ranks without a stage, at the start, in the middle and at the end: they
train with the reports of the same order without those ranks, a step that is not finite is seen, and
their requests are traced. Blank lines at the end of a file without header are no rank."""
import json
import os
import tempfile

from command import CHECK_FAILED, DATA, DONE, REFUSED, SOURCE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "4"]
FIRST, SECOND = "0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"
ONE = "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1"
# Blank lines and the rows that do something; the same without the idle ranks.
IDLE = [(["", ONE], [ONE]), (["", FIRST, "", SECOND], [FIRST, SECOND]), (["", "", FIRST, SECOND], [FIRST, SECOND])]
HOW = [[], ["--optimizer", "sgd:lr=0.1", "--clip", "0.5"], ["--transport", "emulated"]]
DOUBLE = ("#onnx-pipe-schedule v1\n#ranks={} stages=1 replicas=1 microbatches=2 slices=1 parts=1 mode=train "
          "versions=double sync=end\n#place={}\n{}0F0'1,0B0'1,0F1'1,0B1'1\n")


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def ended(result, status=DONE, text=""):
    problem = result.broken(60, 1024)
    if problem or result.status != status or text not in result.err + result.out:
        return problem or f"status {result.status}: {(result.err or result.out)[-300:]}"
    return None


def train(path, *arguments):
    """(problem, what is said of the steps but for their time)"""
    result = run(*TRAIN, "--schedule", "file:" + path, *arguments, "--json")
    problem = ended(result)
    if problem:
        return problem, None
    return None, [{k: v for k, v in step.items() if "second" not in k}
                  for step in json.loads(result.out)["steps"]]


def check_training(count, folder):
    for number, (idle, busy) in enumerate(IDLE):
        for how in HOW:
            arguments = ["--steps", "3", "--reference", *how]
            problem, have = train(write(folder, "idle.csv", "\n".join(idle) + "\n"), *arguments)
            wrong, want = (None, None) if problem else train(
                write(folder, "busy.csv", "\n".join(busy) + "\n"), *arguments)
            if not problem and not wrong and (have != want or [s["step"] for s in have] != [1, 2, 3]):
                problem = f"{have}, not {want}"
            count.check(f"train, idle ranks {number}, {how}", problem or wrong)
    steps = []
    for ranks, place, blank in ((1, 0, ""), (2, 1, "\n")):
        path = write(folder, "double.csv", DOUBLE.format(ranks, place, blank))
        problem, reports = train(path, "--steps", "3")
        count.check(f"train double-buffered, {ranks} ranks", problem)
        steps.append(reports)
    count.check("double-buffered reports", None if steps[0] and steps[0] == steps[1] else str(steps))


def check_not_finite(count, folder):
    path = write(folder, "idle.csv", "\n0F0,0B0\n\n1F0,1B0\n")
    result = run(*TRAIN, "--schedule", "file:" + path, "--optimizer", "sgd:lr=1e20", "--steps", "6")
    count.check("a step that is not finite", ended(result, CHECK_FAILED, "not finite"))


def check_traces(count, folder):
    path = write(folder, "idle.csv", "\n0F0\n\n1F0\n\n")
    trace = os.path.join(folder, "trace.json")
    problem = None
    for _ in range(12): # who passes last is chance
        problem = problem or ended(run("run", MODEL, "--schedule", "file:" + path, "--bind", "batch=4",
                                       "--trace", trace, "--requests", "3"))
    count.check("run --trace", problem)


def check_ends(count, folder):
    """Blank rows at the end: without a header none, with one as many ranks as it says."""
    rows = [FIRST, SECOND]
    shape = ["--bind", "batch=4", "--requests", "2"]
    for end in ("", "\n", "\n\n\n", "\n \r\n\t\n"):
        path = write(folder, "end.csv", "\n".join(rows) + end)
        count.check(f"check, {end!r}", ended(run("schedule", "check", path), DONE, "2 ranks"))
        count.check(f"run, {end!r}", ended(run("run", MODEL, "--schedule", "file:" + path, *shape)))
    header = ("#onnx-pipe-schedule v1\n#ranks={} stages=2 replicas=1 microbatches=2 slices=1 parts=1 mode=train "
              "versions=one sync=end\n#place=0,1\n")
    text = header.format(4) + "\n".join(rows) + "\n\n\n"
    for end in ("", "\n\n"):
        path = write(folder, "end.csv", text + end)
        count.check("check, header", ended(run("schedule", "check", path), DONE, "4 ranks"))
        count.check("run, header", ended(run("run", MODEL, "--schedule", "file:" + path, *shape), DONE, "4 ranks"))
    path = write(folder, "end.csv", header.format(4) + "\n".join(rows) + "\n")
    count.check("rows that the header has more of", ended(run("schedule", "check", path), REFUSED, "ranks (4, there are 2)"))
    for form in ("text", "csv", "json"):
        idle = write(folder, "idle.csv", text)
        shown = os.path.join(folder, "shown")
        count.check(f"show, {form}", ended(run("schedule", "show", idle, "--format", form, "-o", shown)))
        count.check(f"show, {form}: run", ended(run("run", MODEL, "--schedule", "file:" + shown, *shape), DONE, "4 ranks"))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        check_training(count, folder)
        check_not_finite(count, folder)
        check_traces(count, folder)
        check_ends(count, folder)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
