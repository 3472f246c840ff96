#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""plan --measure of one request at a time, and of the plan that options describe; see
test_measure.py."""
import sys
import tempfile

from command import Count, need_command
from test_measure import DEMO, LOSS, TEXT, TWO, judged


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        judged(count, folder, "one request", [DEMO, "--auto=latency", *TWO, "--bind", "batch=4,seq=8"], "request alone", 4)
        judged(count, folder, "given", [DEMO, *LOSS, *TEXT, "--stages", "2", "--microbatches", "2", "--threads", "1"], "step", 1)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
