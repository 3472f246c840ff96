#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every number of vendor.h and vendor_dnn.h is compared with the vendor's by test_declarations.c: a new one that is not would be
believed on every machine. Needs none of the vendor's headers."""
import os
import re
import sys

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
OURS_ALONE = {"CUDA_DNN_NOTES"}  # room for an answer


def text(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def numbers(header):
    for body in re.findall(r"\benum\s*\w*\s*\{(.*?)\}", text("plugins", "backend-cuda", header), re.S):
        yield from re.findall(r"\b(CUDA_\w+)", body)


def main():
    tests = text("tests", "plugins", "backend-cuda", "test_declarations.c")
    compared = set(re.findall(r"\bCUDA_\w+", " ".join(re.findall(r"^ *(?:NUMBER|HANDLE)\(([^,]*),", tests, re.M))))
    found = 0
    missing = []
    for header in ("vendor.h", "vendor_dnn.h"):
        for name in numbers(header):
            found += 1
            if name not in compared | OURS_ALONE:
                missing.append("%s: no NUMBER(%s, ...) in test_declarations.c" % (header, name))
    print("%d numbers, %d not compared with the vendor's" % (found, len(missing)))
    for line in missing:
        print("FAILED:", line)
    return 1 if missing or found < 150 else 0


if __name__ == "__main__":
    sys.exit(main())
