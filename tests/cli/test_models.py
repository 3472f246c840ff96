#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=400
"""Every model of tests/data through the command: whole and in stages, against its data sets; and
every refusal that an expect.txt asks for, under the circumstances that it names."""
import os
import sys

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run


STREAMS = ("shared_buffer",)  # their data are those of a stream: tests/runtime/streams


def folders(group=""):
    base = os.path.join(DATA, group) if group else DATA
    for name in sorted(os.listdir(base)):
        if os.path.exists(os.path.join(base, name, "model.onnx")) and name not in STREAMS:
            yield os.path.join(base, name)


def expectations(folder):
    """{when: [text, ...]}"""
    path, found = os.path.join(folder, "expect.txt"), {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                when, _, text = line.strip().partition(" ")
                found.setdefault(when, []).append(text)
    return found


def wrong(result, status=DONE, texts=()):
    problem = result.broken(120, 1024)
    if problem:
        return problem
    if result.status != status:
        return f"status {result.status}, expected {status}: {(result.err or result.out)[-400:]}"
    missing = [text for text in texts if text not in result.err]
    return f"not in the message: {missing}: {result.err[:300]}" if missing else None


def sound(count, folder, name, stages):
    for number in stages:
        more = [] if number == 1 else ["--reference"]
        result = run("run", folder, "--check", "--stages", str(number), *more, timeout=120)
        count.check(f"{name} in {number} stages", wrong(result))


def refusals(count, folder, name, expect):
    model = os.path.join(folder, "model.onnx")
    commands = {
        "load": ["inspect", model],
        "plan": ["plan", model],
        "microbatches": ["run", folder, "--microbatches", "2", "--stages", "1"],
    }
    for when, texts in expect.items():
        result = run(*commands[when])
        # An input whose value is needed is something that the caller left out.
        status = USAGE if "--pin" in result.err else REFUSED
        count.check(f"{name}, {when}", wrong(result, status, texts))


def main():
    need_command()
    count = Count()
    for folder in folders():
        sound(count, folder, os.path.basename(folder), (1, 2, 3, 4))
    for folder in folders("small"):
        sound(count, folder, f"small/{os.path.basename(folder)}", (1, 2, 3, 4))
    for group in ("odd", "old"):
        for folder in folders(group):
            name = f"{group}/{os.path.basename(folder)}"
            expect = expectations(folder)
            refusals(count, folder, name, expect)
            if not set(expect) & {"load", "plan"}:
                sound(count, folder, name, (1, 2) if group == "odd" else (1,))
    pinned = run("inspect", os.path.join(DATA, "odd", "if_input", "model.onnx"), "--pin", "use=1")
    count.check("odd/if_input pinned", wrong(pinned))
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
