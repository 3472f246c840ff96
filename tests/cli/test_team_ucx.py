# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=nosan
"""Teams whose messages all go by UCX over the loopback: the bits of threads, and faults named in time. test_team_ucx_full: the cases of the
other team tests."""
import ctypes
import sys

import equal
import faults
from command import need_command
from team_jobs import Checks

ALL_BY_UCX = "ucx:together=1"
EQUAL = [("train", "demo", (2, 4), "chimera"), ("train", "demo", (4, 4), "zbv"), ("run", "gpt_past", (4, 4), "1f1b"), ("run", "gpt_bf16", (2, 4), "interleaved:chunks=2")]
FAULTS = [("kill -9", "steady"), ("kill -9", "reduction"), ("exit 0", "warm-up"), ("refused open", "start")]
check = Checks()


def test_processes_have_the_bits_of_threads():
    check(equal.try_cases(check, EQUAL, at_once=2, transport=ALL_BY_UCX) == len(EQUAL), "not all ran")


def test_faults_are_named_in_time():
    faults.try_cases(check, FAULTS, at_once=2, over="ucx")


def is_there():
    try:
        return ctypes.CDLL("libucp.so.0") is not None
    except OSError:
        return False


if __name__ == "__main__":
    need_command()
    if not is_there():
        print("SKIP: UCX (libucp.so.0, package libucx0) is not there")
        sys.exit(77)
    check.run(globals())
