# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""Every schedule, with models of this project and of ../shared, as four processes and as two with two ranks each: the bits of threads."""
from command import need_command
from equal import FAMILIES, OWN, SCHEDULES, SPLITS, try_cases
from team_jobs import Checks

check = Checks()


def test_training():
    cases = [("train", name, split, schedule) for name in ("demo", *FAMILIES) for split in SPLITS for schedule in SCHEDULES]
    check(try_cases(check, cases) > len(cases) // 3, "most schedules were refused")


def test_outputs():
    schedules = ("gpipe", "1f1b", "interleaved:chunks=2", "chimera", "terapipe:slices=2", "zbv")
    cases = [("run", name, split, schedule) for name in (*OWN, *FAMILIES) for split in SPLITS for schedule in schedules]
    check(try_cases(check, cases) > len(cases) // 3, "most schedules were refused")


need_command()
check.run(globals())
