#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full
"""Teams over NCCL, on doubles: every schedule, with two processes and with four, replicas and tensor groups, of a small network and a
transformer, against the plan's reference; every way in which either rank may go wrong, in every phase in which it can."""
from nccl_kit import FAULTS, KERNELS, PHASES, SCHEDULES, compare, need_doubles, strike
from team_jobs import Checks

SUMS = ("chimera",)
MORE = [["--stages", "2", "--replicas", "2"], ["--stages", "1", "--replicas", "4"], ["--tensor", "2"], ["--tensor", "4"],
        ["--tensor", "2,sequence=1"], ["--tensor", "2", "--clip", "0.5"]]
SLICED = ("terapipe:slices=2", "seq1f1b:slices=2")  # of tokens, which the small network has not
check = Checks()


def test_every_schedule():
    for network, n_seeds in (("small", 3), ("demo", 1)):
        cases = [(network, n, ["--schedule", schedule], schedule in SUMS, seed) for n in (2, 4) for schedule in SCHEDULES for seed in range(n_seeds)
                 if network == "demo" or schedule not in SLICED]
        ran = sum(compare(check, *case) for case in cases)
        check(ran > len(cases) // 2, f"{network}: {ran} of {len(cases)} ran")


def test_replicas_and_tensor_groups():
    for network in ("small", "demo"):
        ran = sum(compare(check, network, 4, words, True) for words in MORE)
        check(ran == len(MORE), f"{network}: {ran} of {len(MORE)} ran")


def test_outputs():
    for n in (2, 4):
        for words in (["--schedule", "gpipe"], ["--schedule", "1f1b"], ["--schedule", "terapipe:slices=2"], ["--schedule", "interleaved:chunks=2"]):
            compare(check, "llama", n, words, False)
        compare(check, "llama", n, ["--tensor", "2"], True)


def test_faults_end_all_ranks():
    for fault, word in FAULTS.items():
        for phase in PHASES:
            for victim in (0, 1):
                if word is not None or phase in KERNELS:
                    strike(check, fault, phase, victim)


def test_memory_outlives_work_that_is_aborted_late():
    for late_ms in (100, 500, 1500):  # a communicator, of which there are two: the last is later than a session waits for its device
        for victim in (0, 1):
            strike(check, "silent", "steady", victim, late_ms)


if __name__ == "__main__":
    need_doubles()
    check.run(globals())
