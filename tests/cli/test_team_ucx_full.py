# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""Teams whose messages all go by UCX over the loopback, or by UCX between pairs that share memory: all of test_team_equal, the faults
of test_faults_full, and the kills of test_team_kills_full. test_launchers_ucx_full: the launchers."""
import random
import sys

import equal
import faults
import team_kills
from command import need_command
from team_jobs import Checks
from test_team_equal import CASES
from test_team_ucx import ALL_BY_UCX, is_there

check = Checks()


def test_processes_have_the_bits_of_threads():
    for transport in (ALL_BY_UCX, "ucx:together=2"):
        there = sum(equal.is_there(case[1]) for case in CASES)
        check(equal.try_cases(check, CASES, transport=transport) == there > 0, f"{transport}: not all ran")


def test_every_schedule():
    cases = [("train", "demo", split, schedule) for split in equal.SPLITS for schedule in equal.SCHEDULES]
    check(equal.try_cases(check, cases, transport=ALL_BY_UCX) > len(cases) // 3, "most schedules were refused")


def test_faults_are_named_in_time():
    faults.try_cases(check, faults.all_cases(), at_once=3, over="ucx")


def test_kills_lose_no_checkpoint():
    check(team_kills.main(100, random.randrange(1 << 31), over="ucx") == 0, "see above")


need_command()
if not is_there():
    print("SKIP: UCX (libucp.so.0, package libucx0) is not there")
    sys.exit(77)
check.run(globals())
