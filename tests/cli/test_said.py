#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=100
"""Texts of refusals: files once and by name, both numbers, the nearest thing that exists; targets are tried before
anything is computed."""
import json
import os
import struct
import tempfile

from command import DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
ONE = ["--stages", "1"]
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16", "--steps", "1"]
LOSS = "cross-entropy:logits=logits,labels=labels,shift=1"


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def array(header, n_bytes, version=1):
    text = header.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + bytes(n_bytes)


def arrays(folder):
    """Name, content, what is said of it by run and by train."""
    form = "{'descr': %s, 'fortran_order': %s, 'shape': %s, }\n"
    plain = form % ("'<i8'", "False", "(2, 8)")
    for name, content, says in (
            ("big.npy", array(form % ("'>i8'", "False", "(2, 8)"), 128), "elements of type '>i8' are not supported: save them in little-endian order"),
            ("spans.npy", array(form % ("'<m8'", "False", "(2, 8)"), 128), "elements of type '<m8' are not supported\n"),
            ("fields.npy", array(form % ("[('a', '<i8')]", "False", "(2, 8)"), 128), "elements of type [('a' are not supported\n"),
            ("turned.npy", array(form % ("'<i8'", "True", "(2, 8)"), 128), "it is in Fortran order; save it in C order"),
            ("short.npy", array(plain, 123), "123 bytes behind its header, its shape takes 128"),
            ("long.npy", array(plain, 130), "130 bytes behind its header, its shape takes 128"),
            ("huge.npy", array(form % ("'<i8'", "False", "(4611686018427387904, 8)"), 0), "its shape is too large"),
            ("newer.npy", array(plain, 128, 9), "version 9 of the .npy format, 1 to 3 are known")):
        path = write(folder, name, content)
        yield ["run", MODEL, *ONE, "--input", "input_ids=" + path], REFUSED, f"onnx-pipe: {path}: {says}"
        yield ["train", MODEL, "--data", "input_ids=" + path], REFUSED, f"onnx-pipe: {path}: {says}"


def cases(folder):
    there = os.path.join(folder, "none")
    inside = os.path.join(there, "file")
    of_requests, of_training = os.path.join(folder, "requests.json"), os.path.join(folder, "training.json")
    good = write(folder, "good.npy", array("{'descr': '<i8', 'fortran_order': False, 'shape': (2, 8), }\n", 128))
    spoilt = os.path.join(folder, "spoilt.json")
    run("plan", MODEL, *ONE, "-o", spoilt)
    with open(spoilt, encoding="utf-8") as file:
        plan = json.load(file)
    plan["play"] = "nothing"
    with open(spoilt, "w", encoding="utf-8") as file:
        json.dump(plan, file)
    yield from arrays(folder)
    yield ["run", MODEL, *ONE, "--input", "ids=" + good], USAGE, "--input: the model has no input 'ids'; its inputs are 'input_ids'; did you mean 'input_ids'?\n"
    yield ["run", MODEL, *ONE, "--pin", "ids=1"], USAGE, "--pin: the model has no input 'ids'; its inputs are 'input_ids'; did you mean 'input_ids'?\n"
    yield ["run", MODEL, *ONE, "--bind", "batch=99999999999"], USAGE, "input 'input_ids' has 8e+11 elements of type int64: there is no memory"
    yield ["run", ""], USAGE, "run takes MODEL|DIR, its name is empty"
    yield ["run", inside], USAGE, f"onnx-pipe: '{inside}' does not exist\n"
    yield ["run", MODEL, "--cluster", "nope"], USAGE, "onnx-pipe: there is no cluster 'nope': "
    yield ["simulate", spoilt], REFUSED, f"onnx-pipe: {spoilt}: the plan's \"play\""
    yield ["simulate"], USAGE, "simulate takes PLAN|MODEL, 0 operands"
    yield ["--stages", "2", "run", MODEL], USAGE, "--stages: a command comes first"
    for plan, training in ((of_requests, []), (of_training, ["--train", "--loss", LOSS])):
        run("plan", MODEL, "--bind", "batch=8,seq=16", *training, "-o", plan)
    yield ["run", MODEL, "--plan", of_training], REFUSED, f"--plan {of_training} is a plan for training: 'onnx-pipe train' takes it"
    yield [*TRAIN, "--plan", of_requests], REFUSED, f"--plan {of_requests} is a plan for inference: 'onnx-pipe run' takes it"
    yield ["profile", "--arch", "gpt"], USAGE, "onnx-pipe: profile: arch: gpt needs layers="
    yield ["profile", MODEL, "-o", inside], REFUSED, f"onnx-pipe: cannot write {inside}: "
    order = ["gpipe", "--ranks", "2", "--microbatches", "2"]
    for option in (["--load", "send=1"], ["--copies", "2"], ["--collective", "ring"], ["--sharded"], ["--pipeline-first"]):
        yield ["schedule", "simulate", *order, *option], USAGE, f"schedule: {option[0]} applies to a described cluster: add --cluster"
    yield ["run", MODEL, "--schedule", "gpipe:chunks=2"], USAGE, "schedule 'gpipe' has no option 'chunks': it has none\n"
    yield ["run", MODEL, "--schedule", "interleaved:chunk=2"], USAGE, "schedule 'interleaved' has no option 'chunk': it has chunks, "
    yield ["help", "frob"], USAGE, "there is no command 'frob'"
    # Nothing is computed for what cannot be written.
    for arguments in (["plan", MODEL, "-o", inside], ["plan", MODEL, "--annotate", inside], ["plan", MODEL, "-o", folder]):
        yield arguments, REFUSED, f"onnx-pipe: cannot write {arguments[-1]}: "
    for place in (inside, good):
        yield ["run", MODEL, *ONE, "-o", place], REFUSED, f"onnx-pipe: cannot write into {place}: "
    for option, says in (("--save", f"a checkpoint in {inside}: making the folder {inside}: "),
                         ("--save-model", f"making {inside}.")):
        yield [*TRAIN, "--loss", LOSS, option, inside], REFUSED, f"onnx-pipe: {says}"
    yield [*TRAIN, "--loss", LOSS, "--resume", inside], USAGE, f"--resume {inside}: there is no such folder"
    yield [*TRAIN, "--loss", LOSS, "--resume", folder], REFUSED, "there is no manifest.json: no checkpoint"
    for spec, says in (("adamw:lr=1,lr=2", "lr is given twice"), ("adamw:lr=1e400", "lr=1e400: a number of at least 0")):
        yield [*TRAIN, "--loss", LOSS, "--optimizer", spec], USAGE, says
    for spec in ("cosine:warmup=1e300", "linear:warmup=1.5", "linear:total=1e17"):
        yield [*TRAIN, "--loss", LOSS, "--lr-schedule", spec], USAGE, f"{spec.split(':')[1]}: a whole number from "
    for number in ("1e300", "-1.5"):
        yield [*TRAIN, "--loss", f"{LOSS},ignore={number}"], USAGE, f"--loss: ignore={number}: a whole number from -9007199254740992 to 9007199254740992"
    yield [*TRAIN, "--loss", LOSS, "--frozen", "*"], REFUSED, "could be, and are frozen by name"
    yield [*TRAIN, "--loss", LOSS, "--trainable", "nope"], USAGE, "the model has no tensor 'nope' to cut at or to train"
    yield [*TRAIN, "--loss", LOSS, "--seed", "-1"], USAGE, "--seed -1: an integer from 0 to 2^64 - 2 is needed"


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for arguments, status, text in cases(folder):
            result = run(*arguments)
            good = result.status == status and text in result.err
            wrong = f"{result.status}: {(result.err or result.out)[-300:]}"
            said = any(word in result.out for word in ("output ", "step ")) or "cannot write" in text and result.out != ""
            count.check(" ".join(arguments)[-120:], result.broken(30, 1024) or (None if good else wrong) or ("it was computed" if said else None))
        fresh = os.path.join(folder, "fresh")
        result = run("run", MODEL, *ONE, "-o", fresh, "--cut", "nope")
        count.check("nothing stays of a trial", f"{fresh} is there" if os.path.exists(fresh) or result.status != REFUSED else None)
    for arguments, *texts in ((["help", "run"], "usage: onnx-pipe run [OPTION ...] MODEL|DIR\n", "run a model", "also -o"),
                              (["plan", "--help"], "onnx-pipe plan explain A.json B.json", "cut a model into stages"),
                              (["inspect", os.path.join(DATA, "odd", "output_is_initializer", "model.onnx")], "output  b  "),
                              (["inspect", os.path.join(DATA, "odd", "output_is_initializer", "model.onnx"), "--json"], '{"name": "b", '),
                              (["simulate", "--help"], "simulate [OPTION ...] PLAN|MODEL")):
        result = run(*arguments)
        lacking = [text for text in texts if text not in result.out]
        count.check(" ".join(arguments), None if result.status == DONE and not lacking else f"{result.status}: not said: {lacking}")
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
