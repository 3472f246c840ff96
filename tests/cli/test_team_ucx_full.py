# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""Teams whose messages all go by UCX over the loopback, or by UCX between pairs that share memory: all of test_team_equal, the faults
of test_faults_full, the kills of test_team_kills_full and the launchers of test_launchers_full."""
import filecmp
import os
import random
import sys
import tempfile

import equal
import faults
import team_kills
from command import need_command, run
from team_jobs import GPT, LAUNCHERS, Checks, Job, words_of
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


def test_launchers():
    here = [name for name in LAUNCHERS if words_of(name, 2)]
    for missing in set(LAUNCHERS) - set(here):
        print(f"SKIP: the launcher {missing} is not there")
    with tempfile.TemporaryDirectory() as folder:
        faults.bits_under(check, here, folder, over="ucx")
    faults.all_ends(check, here, over="ucx")


def test_variables_of_slurm():
    own = [{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r), "SLURM_STEP_NUM_TASKS": "2"} for r in (0, 1)]
    with tempfile.TemporaryDirectory() as folder:
        made = [os.path.join(folder, name) for name in ("threads", "processes")]
        threads = run("run", GPT, "--ranks", "2", "--transport", "ucx", "-o", made[0])
        ended = Job(2, "run", GPT, "--transport", ALL_BY_UCX, "-o", made[1], env=dict(enumerate(own)), torchrun=False).end()
        names = os.listdir(made[0])
        check(threads.status == 0 and [status for status, _, _ in ended] == [0, 0], f"{threads.err} {ended}")
        check(names and not any(filecmp.cmpfiles(*made, names, shallow=False)[1:]), f"outputs differ: {names}")


need_command()
if not is_there():
    print("SKIP: UCX (libucp.so.0, package libucx0) is not there")
    sys.exit(77)
check.run(globals())
