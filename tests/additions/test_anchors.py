#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The places where test_additions_full.py adds something are still there, each once: it builds for minutes before it says so."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "cli"))
from additions import ADDITIONS  # noqa: E402
from command import SOURCE, Count  # noqa: E402


def times(path, anchor):
    with open(os.path.join(SOURCE, path), encoding="utf-8") as file:
        return file.read().count(anchor)


def main():
    count = Count()
    for name, _, edits in ADDITIONS:
        lost = [f"{path}: {anchor!r} stands there {times(path, anchor)} times" for path, anchor, _ in edits
                if anchor is not None and times(path, anchor) != 1]
        count.check(name, "; ".join(lost) or None)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
