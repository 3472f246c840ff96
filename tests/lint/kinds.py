#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first replica stands for all only where graphs, orders, lists and bytes are made. Elsewhere every replica is taken as it is; house.py
counts where it is asked whether a plan is for training."""
import re

from lib import tree

CORE = ("loader/", "partition/", "runtime/")
# How graphs, orders, lists and bytes are made, what is written of them, and what ranks do with them.
PLACES = ("partition/file/", "partition/lists/", "partition/make/make.c", "partition/make/read.c", "partition/memory/", "partition/program/", "partition/schedule/", "partition/search/",
          "partition/study/simulate/",
          "runtime/compiled/", "runtime/executor/", "runtime/requests/fates.c", "runtime/requests/lane.c",
          "runtime/requests/peers.c", "runtime/requests/rest.c", "runtime/requests/share.c", "runtime/requests/steps.c", "runtime/trace/")
FIRST = re.compile(r"\bopi_plan_rank\([^()]*,\s*0\)")


def main():
    report = tree.Report("kinds")
    for path in tree.files(tree.C_ENDINGS):
        if not path.startswith(CORE) or path.startswith(PLACES):
            continue
        for number, line in enumerate(tree.code(tree.text(path)).splitlines(), 1):
            if FIRST.search(line):
                report.add(path, number, "takes the first replica for all", "replica")
    report.end()


if __name__ == "__main__":
    main()
