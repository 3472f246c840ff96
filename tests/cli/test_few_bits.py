#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""A plan says which arithmetic products with weights of few bits use: what the file asks for, and on which ranks rows are
rounded to 8 bits; so does its file, and a comparison of two."""
import json
import os
import re
import sys
import tempfile

from command import DATA, DONE, Count, need_command, run

# Models of tests/data/small: (products, bits, accuracy level); how many round.
MODELS = {
    "nbits_int8": ([(1, 2, 4), (2, 4, 4), (1, 8, 4)], 4),
    "nbits4": ([(4, 4, 0)], 0),
    "nbits2": ([(3, 2, 0)], 0),
    "qdq4": ([(4, 4, 0)], 0),
    "qdq8": ([(4, 8, 0)], 0),
    "gathered": ([(1, 4, 0), (1, 8, 0)], 0),  # what is gathered is no product
    "dynamic8": ([], 0),  # integers by the graph's own nodes
}
WHOLE = ("gathered", "dynamic8")  # scales that are gathered, or of all rows together: no micro-batches
ROUNDED = re.compile(r"^rank \d+: (\d+) of its products rounds? ", re.M)


def path_of(name):
    return os.path.join(DATA, "small", name, "model.onnx")


def plan(count, what, *arguments):
    result = run("plan", *arguments)
    wrong = None if result.status == DONE else f"{result.status}: {result.err[-300:]}"
    count.check(what, result.broken(60, 2048) or wrong)
    return result.out


def expect(count, what, found, wanted):
    count.check(what, None if found == wanted else f"{found}, not {wanted}")


def says(count, what, text, forms, rounded):
    """The lines of a plan's text."""
    line = ", ".join(f"{n} of {bits} bits at accuracy level {level}" for n, bits, level in forms)
    first = [found for found in text.splitlines() if found.startswith("products with")]
    expect(count, f"{what}: forms", first, [f"products with weights of few bits: {line}"] if forms else [])
    numbers = [int(n) for n in ROUNDED.findall(text)]
    expect(count, f"{what}: rounded", sum(numbers) if forms else numbers, rounded if forms else [])


def one_model(count, folder, name, forms, rounded):
    whole, cut, reference = (os.path.join(folder, f"{name}-{way}.json") for way in ("whole", "cut", "reference"))
    model, parts = [path_of(name), "--bind", "batch=3"], "1" if name in WHOLE else "2"
    says(count, name, plan(count, name, *model, "--stages", "1", "-o", whole), forms, rounded)
    says(count, f"{name} cut", plan(count, name, *model, "--stages", "2", "--microbatches", parts, "-o", cut), forms, rounded)
    plain = ["--stages", "1", "--device", "cpu,kernels=reference", "-o", reference]
    says(count, f"{name} reference", plan(count, name, *model, *plain), forms, 0)
    for path, wanted in ((whole, rounded), (cut, rounded), (reference, 0)):
        with open(path, encoding="utf-8") as file:
            written = json.load(file)
        listed = [(f["products"], f["bits"], f["accuracy_level"]) for f in written.get("few_bits", [])]
        expect(count, f"{path}: forms", listed, forms)
        expect(count, f"{path}: rounded", sum(r.get("rounded_products", 0) for r in written["memory"]), wanted)
    again = os.path.join(folder, "again.json")
    says(count, f"{name} read", plan(count, name, path_of(name), "--plan", cut, "-o", again), forms, rounded)
    with open(cut, "rb") as one, open(again, "rb") as other:
        count.check(f"{name} written again", None if one.read() == other.read() else "other bytes")


def split(count, name):
    """Weights of half a byte are the same whatever the number of rows."""
    result = run("run", path_of(name), "--bind", "batch=4", "--reference", "--stages", "2", "--microbatches", "2")
    wrong = None if result.status == DONE else f"{result.status}: {result.err[-300:]}"
    count.check(f"{name} in micro-batches", result.broken(60, 2048) or wrong)


def compared(count, folder):
    a, b = (os.path.join(folder, f"nbits_int8-{way}.json") for way in ("whole", "reference"))
    result = run("plan", "explain", a, b, "--json")
    found = [d for d in json.loads(result.out or "{}").get("differs", []) if d["what"] == "weights of few bits"]
    forms = "1x2@4 2x4@4 1x8@4"
    expect(count, "explain", found, [{"what": "weights of few bits", "a": f"{forms}, 4 rounded", "b": f"{forms}, 0 rounded"}])


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for name, (forms, rounded) in MODELS.items():
            one_model(count, folder, name, forms, rounded)
        compared(count, folder)
        split(count, "qdq4")
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
