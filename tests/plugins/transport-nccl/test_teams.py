#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""Teams of two and four processes over NCCL, on doubles: schedules, replicas and tensor groups against the plan's reference; a rank that
goes wrong; what is refused. test_teams_full: all of them."""
import tempfile

from nccl_kit import compare, job, need_doubles, strike, words_of
from team_jobs import Checks

# Network, processes, words, whether the plan has sums over ranks of more than norms.
CASES = [("small", 2, ["--schedule", "gpipe"], False), ("small", 4, ["--schedule", "1f1b"], False),
         ("small", 2, ["--schedule", "interleaved:chunks=2"], False), ("small", 2, ["--schedule", "zb-h1"], False),
         ("small", 2, ["--schedule", "zbv"], False), ("small", 2, ["--schedule", "2bw"], False),
         ("small", 4, ["--schedule", "chimera"], True), ("small", 4, ["--stages", "2", "--replicas", "2"], True),
         ("small", 2, ["--tensor", "2"], True), ("small", 4, ["--tensor", "2,sequence=1"], True),  # one row: one of two members has none
         ("llama", 4, ["--schedule", "1f1b"], False), ("llama", 2, ["--schedule", "terapipe:slices=2"], False)]
FAULTS = [("killed", "steady"), ("silent", "reduction"), ("late error", "warm-up"), ("abort", "steady")]
check = Checks()


def test_the_reference_is_met():
    for seed, case in enumerate(CASES):
        check(compare(check, *case, seed=seed + 1), f"{case} is refused")


def test_faults_end_all_ranks():
    for fault, phase in FAULTS:
        strike(check, fault, phase)


def test_memory_outlives_work_that_is_aborted_late():
    strike(check, "silent", "steady", 0, 200)


def refuse(what, words, said, **more):
    """All of two processes end with 3, and say this."""
    with tempfile.TemporaryDirectory() as folder:
        ended = job(2, [*words_of("small", folder), "--ranks", "2", *words], **more).end()
    for rank, (status, text, _) in enumerate(ended):
        check(status == 3 and said in text, f"{what}, process {rank}: {status}: {text}")


def test_refusals():
    nccl = ["--transport", "nccl"]
    refuse("another version", nccl, "NCCL 2.27.5", env={1: {"OPIPE_NCCL_DOUBLE_VERSION": "22705"}})
    refuse("an old version", nccl, "2.25.1", env={rank: {"OPIPE_NCCL_DOUBLE_VERSION": "22501"} for rank in (0, 1)})
    refuse("one GPU", nccl, "ranks 0 and 1 are on one GPU", one_gpu=True)
    refuse("the processor", [*nccl, "--device", "cpu"], "cuda")
    refuse("two ranks in a process", [*nccl, "--ranks", "4"], "one rank of each process")


def test_one_gpu_is_shared_where_it_is_asked_for():
    with tempfile.TemporaryDirectory() as folder:
        ended = job(2, [*words_of("small", folder), "--ranks", "2", "--transport", "nccl:share=1"], one_gpu=True).end()
    check([status for status, _, _ in ended] == [0, 0], f"share=1: {ended}")


if __name__ == "__main__":
    need_doubles()
    check.run(globals())
