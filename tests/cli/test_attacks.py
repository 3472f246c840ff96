#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=400
"""Every hostile file of tests/data/attacks: the right refusal, or the right result, and in both
cases no crash, no hang and no more memory than the file deserves."""
import os
import subprocess
import sys
import tempfile

from command import DATA, DONE, REFUSED, SANITIZED, USAGE, Count, need_command, run

SECONDS = 40 if SANITIZED else 8
MIB = 400


def said(result, text):
    """Why this is not a refusal that says `text`."""
    if result.status != REFUSED:
        return f"status {result.status}, expected {REFUSED}: {result.err.strip()[:200]}"
    if not result.err.strip():
        return "refused without a word"
    return None if text in result.err else f"`{text}` is not in: {result.err.strip()[:300]}"


def tried(model):
    """Inspected, and run if that went well: what lies in the values shows only then."""
    result = run("inspect", model, timeout=SECONDS)
    if result.status == DONE:
        result = run("run", model, "--stages", "1", timeout=SECONDS)
    return result


def problem(folder, expectation):
    word, _, text = expectation.partition(" ")
    if word == "runs":
        result = run("run", folder, "--check", "--stages", "1", timeout=SECONDS)
        wrong = None if result.status == DONE else f"status {result.status}: {result.err[-300:]}"
    else:
        result = tried(os.path.join(folder, "model.onnx"))
        wrong = None if word == "any" else said(result, text)
    return result.broken(SECONDS, MIB) or wrong


def mutilated(count, folder):
    """Cut and flipped files may load or not; what loads is run as well."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        result = tried(path)
        wrong = result.broken(SECONDS, MIB)
        if not wrong and result.status not in (DONE, USAGE, REFUSED):
            wrong = f"status {result.status}"
        count.check(f"{os.path.basename(folder)}/{name}", wrong)


def main():
    need_command()
    count = Count()
    maker = os.path.join(DATA, "attacks", "make.py")
    # A model of one file: what is cut or flipped must be what is read.
    whole = os.path.join(DATA, "llama_attention", "model.onnx")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-B", maker, folder, "--model", whole, "--flips", "200"], check=True
        )
        for name in sorted(os.listdir(folder)):
            expect = os.path.join(folder, name, "expect.txt")
            if os.path.exists(expect):
                with open(expect, encoding="utf-8") as file:
                    count.check(name, problem(os.path.join(folder, name), file.read().strip()))
        for part in ("truncated", "flipped"):
            mutilated(count, os.path.join(folder, part))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
