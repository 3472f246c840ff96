#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""run and train --tensor, all combinations: widths 2, 3, 4, stages 1, 2, 4, replicas 1, 2, every schedule with a forward form, token slices and
halves, every rule of delivery with random delays, on a device that works later, a process for each member, and every family of exports.
test_tensor_forms_full.py has recomputation, bf16, sharded optimizers and dropout."""
import glob
import os
import re
import sys

from command import BUILD, DATA, DONE, REFUSED, Count, need_command, run
from equal import labels_of
from test_team_ucx import is_there
from test_tensor import MODERN, TRAIN, problem_of

PLUGINS = os.path.join(BUILD, "tests", "plugins")
MODELS = ("gpt_8block", "llama_8block", "encoder")
SCHEDULES = ("gpipe", "1f1b", "sequential", "interleaved:chunks=2", "looped-bfs:chunks=2", "chimera", "zbv", "v-half", "v-min", "zb-h1",
             "terapipe:slices=3")
STRICT = ["--plugin", os.path.join(PLUGINS, "opipe-transport-strict.so"), "--transport"]
TRANSPORTS = [["--transport", "local"], ["--transport", "shm"], [*STRICT, "strict:rule=tag"], [*STRICT, "strict:rule=stream"],
              ["--transport", "emulated:rule=grouped"],
              *(["--transport", f"emulated:rule={rule},jitter_us=300,seed={i}"]
                for i, rule in enumerate(("tag", "stream", "edge", "pair", "blocking", "grouped")))]
TRAINED = ("gpipe", "1f1b", "interleaved:chunks=2", "looped-bfs:chunks=2", "chimera", "2bw", "zb-h1", "zb-h2", "zb-auto", "zb-interleaved:chunks=2",
           "zbv", "v-half", "v-min", "dualpipev", "terapipe:slices=2", "seq1f1b:slices=3", "chimera:concat=halving")
UNSLICED = ("bert", "distilbert", "perceiver", "roberta", "siglip", "t5", "t5v11", "vit", "whisper")  # rows read later tokens, or there are none
WHY_NOT = ("does not carry the axis", "tokens cannot be sliced", "slices tokens: no input has a free token dimension")
LATER = ["--device", "emulated:3,async=1,time_us=100"]


def check(count, path, *words):
    count.check(f"{path.split(os.sep + 'infer')[0].split(os.sep)[-1]} {' '.join(words)}", problem_of(path, *words))


def check_schedules(count):
    for i, schedule in enumerate(SCHEDULES):
        for width in (2, 3, 4):
            for ranks in (1, 2, 4):
                for replicas in (1, 2):
                    if ranks == 1 and schedule not in ("gpipe", "1f1b", "sequential"):
                        continue
                    n_models = 2 if "slices" in schedule else 3  # the encoder is not causal
                    model = os.path.join(DATA, MODELS[(i + width + ranks) % n_models], "model.onnx")
                    check(count, model, "--bind", "batch=6,seq=8", "--requests", "3", "--schedule", schedule, "--tensor", str(width),
                          "--ranks", str(ranks * width * replicas), "--replicas", str(replicas), "--microbatches", str(2 * replicas))


def check_transports(count):
    model = os.path.join(DATA, "gpt_8block", "model.onnx")
    for words in TRANSPORTS:
        for device, width in (([], "2"), (LATER, "2"), ([], "2,scattered=1")):
            for schedule in ("gpipe", "terapipe:slices=2"):
                check(count, model, "--bind", "batch=3,seq=8", "--requests", "8", "--tensor", width, "--stages", "2", "--microbatches", "3",
                      "--schedule", schedule, *words, *device)
            for schedule in ("interleaved:chunks=2", "seq1f1b:slices=2", "chimera:concat=halving"):
                given = [*TRAIN[1:], "--schedule", schedule, "--ranks", "4", "--tensor", width, "--microbatches", "4", "--batch", "8", *words, *device]
                count.check(f"train {' '.join(given[-10:])}", trained(*given))


def check_modern(count):
    for path in sorted(glob.glob(os.path.join(MODERN, "*", "infer", "model.onnx"))):
        for width in (2, 3, 4):
            for stages in (1, 2, 4):
                check(count, path, "--tensor", str(width), "--stages", str(stages), "--requests", "2")
            check(count, path, "--tensor", f"{width},sequence=1", "--stages", "2", "--requests", "2")
            check(count, path, "--tensor", f"{width},scattered=1", "--stages", "2", "--requests", "2", "--transport", "shm")


def check_trained(count):
    """Every export that can be trained, and every schedule of training."""
    for path in sorted(glob.glob(os.path.join(MODERN, "*", "train"))):
        name = path.split(os.sep)[-2]
        for width in ("2", "3", "4", "2,sequence=1", "3,sequence=1", "3,scattered=1"):
            words = [os.path.join(path, "model.onnx"), *labels_of(path), "--microbatches", "2", "--stages", "2", "--tensor", width,
                     "--transport", "shm" if "scattered" in width else "local"]
            count.check(f"train {name} --tensor {width}", trained(*words, refused=name == "siglip"))  # its loss reads all rows together
        words = [os.path.join(path, "model.onnx"), *labels_of(path), "--ranks", "4", "--microbatches", "1", "--tensor", "2"]
        for schedule in ("terapipe:slices=2", "chimera:concat=halving"):
            refused = name == "siglip" or (name in UNSLICED and "slices" in schedule)
            count.check(f"train {name} {schedule}", trained(*words, "--schedule", schedule, refused=refused))
    for schedule in TRAINED:
        for width, replicas in (("2", "1"), ("3", "2"), ("2,sequence=1", "2"), ("2,scattered=1", "1")):
            if "halving" in schedule and "sequence" in width:
                continue
            ranks = str(2 * int(width[0]) * int(replicas))
            words = [*TRAIN[1:], "--schedule", schedule, "--ranks", ranks, "--tensor", width, "--replicas", replicas, "--microbatches", "12",
                     "--transport", "shm" if "scattered" in width else "local",
                     "--batch", "24" if "halving" in schedule else "12", "--optimizer", "adamw:lr=0.001", "--clip", "0.5"]
            count.check(f"train {schedule} --tensor {width} --replicas {replicas}", trained(*words))


def check_processes(count):
    """A process for each of four members: over shared memory, and by UCX over the loopback."""
    transports = ["shm", *(["ucx:together=1"] if is_there() else [])]
    if len(transports) == 1:
        count.skip("UCX (libucp.so.0, package libucx0) is not there")
    for transport in transports:
        for width in ("2", "4", "2,sequence=1", "2,scattered=1"):
            form = ["--ranks", "4", "--tensor", width, "--transport", transport]
            for schedule in SCHEDULES:
                words = [os.path.join(DATA, "llama_8block", "model.onnx"), "--bind", "batch=4,seq=8", "--requests", "3", "--microbatches", "2"]
                count.check(f"4 processes: run {schedule} {' '.join(form)}", of_processes(None, "run", *words, "--schedule", schedule, *form))
            for schedule in TRAINED:
                words = ["--schedule", schedule, "--microbatches", "4", "--batch", "8", "--steps", "3", "--optimizer", "adamw:lr=0.001", "--clip", "0.5"]
                count.check(f"4 processes: train {schedule} {' '.join(form)}", of_processes(refusal_of(schedule, width), *TRAIN, *words, *form))


def refusal_of(schedule, width):
    """The message by which a schedule refuses groups of this width on four ranks; None: it runs."""
    if schedule.startswith("chimera") and width == "4":
        return "needs an even number of stages and ranks: 1 is odd"
    return "whose rows other members have" if "halving" in schedule and "sequence" in width else None


def of_processes(refusal, *words):
    result = run("launch", "-n", "4", "--", *words, "--reference")
    if result.broken(120, 8192):
        return result.broken(120, 8192)
    good = result.status == DONE and re.search("identical to the plan's reference|plan's reference +bit-equal", result.out)
    if refusal is not None:
        good = result.status == REFUSED and refusal in result.err
    return None if good else f"status {result.status}: {(result.err or result.out)[-300:]}"


def trained(*words, refused=False):
    result = run("train", *words, "--steps", "10", "--reference")
    if result.broken(120, 2048):
        return result.broken(120, 2048)
    good = result.status == DONE and "bit-equal" in result.out and re.search("uncut model +close", result.out)
    if refused:
        good = result.status == REFUSED and any(why in result.err for why in WHY_NOT)
    return None if good else f"status {result.status}: {(result.err or result.out)[-300:]}"


def main():
    need_command()
    count = Count()
    check_schedules(count)
    check_transports(count)
    check_modern(count)
    check_trained(count)
    check_processes(count)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
