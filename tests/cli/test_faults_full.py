# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600 label=full
"""Every fault that one of several processes may have, in every phase in which it exists, in either process; which do not exist, and why."""
from command import need_command
from faults import NONE, PHASES, PLACES, all_cases, try_cases
from team_jobs import Checks

# Every call with which a session opens its part of the transport may be refused, in either process.
OPENS = [(where, process) for where in ("world:1", "memory:1", "memory:2", "stream:1", "stream:2", "stream:3") for process in (0, 1)]
check = Checks()


def test_all_faults():
    for (fault, phase), reason in NONE.items():
        print(f"does not exist: {fault} at {phase}: {reason}")
    cases = [case for case in all_cases() if case[0] != "refused open"]
    other = [(fault, phase, (PLACES[phase][0], 1 - PLACES[phase][1])) for fault, phase in cases
             if fault not in ("NaN", "memory cgroup") and phase != "save"]
    try_cases(check, [*cases, *other, ("NaN", "steady", "--check-finite"), *[("refused open", "start", place) for place in OPENS]], at_once=3)
    print(f"{len(PHASES)} phases, {len(cases) + len(other) + len(OPENS) + 1} cases")


need_command()
check.run(globals())
