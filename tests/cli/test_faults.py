# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=nosan
"""Eight of the faults that one of several processes may have, each in another phase: every other process ends in time, with an error that
names the process and what it was at; status, processes, sockets and checkpoints are as they must be. test_faults_full: all of them."""
from command import need_command
from faults import try_cases
from team_jobs import Checks

CASES = [("kill -9", "start"), ("kill -9", "save"), ("SIGSTOP", "steady"), ("exit 3", "warm-up"), ("exit 0", "reduction"), ("exit 0", "close"),
         ("memory cgroup", "steady"), ("refused open", "start"), ("NaN", "steady")]
check = Checks()


def test_faults_are_named_in_time():
    try_cases(check, CASES, at_once=3)


need_command()
check.run(globals())
