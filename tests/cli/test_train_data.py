#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""train --data: texts beside arrays of one's own, in any order; lengths of rows as --bind spells them."""
import os
import struct
import tempfile

from command import DATA, REFUSED, USAGE, Count, need_command, run
from test_train import losses, npy, wrong

GPT = os.path.join(DATA, "demo", "model.onnx")
ROWS, SEQ = 8, 16
LOSS = "cross-entropy:logits=logits,labels=labels"


def write_labels(path, rows):
    numbers = [i * i * 7 % 50 for i in range(rows * SEQ)]
    with open(path, "wb") as file:
        file.write(npy((rows, SEQ), "<i8", struct.pack(f"<{len(numbers)}q", *numbers)))


def train(sources, loss=LOSS, bind="seq=16"):
    data = [part for source in sources for part in ("--data", source)]
    return run("train", GPT, *data, "--loss", loss, "--bind", bind, "--batch", "4", "--steps", "2", "--json")


def own_labels(count, folder, text):
    """They have as many rows as the text, and are judged as they are."""
    few, labels = (os.path.join(folder, name) for name in ("few.npy", "labels.npy"))
    write_labels(few, 5)
    write_labels(labels, ROWS)
    said = f"it has {ROWS} samples, array 'labels' has 5"
    count.check("fewer labels in front of a text", wrong(train([f"labels={few}", text]), REFUSED, said))
    for sources in ([f"labels={labels}", text], [text, f"labels={labels}"]):
        plain = train(sources)
        if sources[0] == text:
            count.check("labels behind a text", wrong(plain, USAGE, "there is an array 'labels' already"))
            continue
        problem = wrong(plain)
        results = {shift: train(sources, f"{LOSS},shift={shift}") for shift in (0, 1)}
        for result in results.values():
            problem = problem or wrong(result)
        if not problem and not losses(plain) == losses(results[0]) != losses(results[1]):
            problem = f"losses {losses(plain)}, shift=0 {losses(results[0])}, shift=1 {losses(results[1])}"
        count.check("labels of one's own are not shifted", problem)
    ids = train([f"input_ids={labels}", text])
    count.check("ids in front of a text", wrong(ids, USAGE, "there is an array 'input_ids' already"))
    plain, shifted = train([text]), train([text], LOSS + ",shift=1")
    problem = wrong(plain) or wrong(shifted)
    if not problem and losses(plain) != losses(shifted):
        problem = f"losses {losses(plain)}, shift=1 {losses(shifted)}"
    count.check("a text's own labels are shifted", problem)


def lengths(count, text):
    want = train([text])
    place = train([text], bind="input_ids.1=16")
    problem = wrong(want) or wrong(place)
    if not problem and losses(place) != losses(want):
        problem = f"losses {losses(place)}, {losses(want)} with seq=16"
    count.check("the place of the dimension", problem)
    for bind, said in (("seq=abc", "'abc' is not a number"), ("seq=0", "rows of 0 tokens"), ("seq", "DIM=N is needed")):
        count.check(bind, wrong(train([text], bind=bind), USAGE, said))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text")
        with open(path, "wb") as file:
            file.write(bytes(97 + i * i % 26 for i in range(ROWS * SEQ)))
        own_labels(count, folder, "text:" + path)
        lengths(count, "text:" + path)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
