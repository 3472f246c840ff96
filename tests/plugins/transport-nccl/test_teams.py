#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""Teams of two and four processes over NCCL, on doubles: schedules, replicas and tensor groups against the plan's reference."""
from nccl_kit import compare, need_doubles
from team_jobs import Checks

# Network, processes, words, whether the plan has sums.
CASES = [("small", 2, ["--schedule", "gpipe"], False), ("small", 4, ["--schedule", "1f1b"], False),
         ("small", 2, ["--schedule", "interleaved:chunks=2"], False), ("small", 2, ["--schedule", "zbv"], False)]
check = Checks()


def test_the_reference_is_met():
    for seed, case in enumerate(CASES):
        compare(check, *case, seed=seed + 1)


if __name__ == "__main__":
    need_doubles()
    check.run(globals())
