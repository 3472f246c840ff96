# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Twenty plans run by four processes, or by two with two ranks each, have the bits of the same plan run by threads: models of this project
and of ../shared, a schedule each. test_team_equal_full: all schedules of all."""
from command import need_command
from equal import is_there, try_cases
from team_jobs import Checks

FOUR, TWO = (4, 4), (2, 4)
CASES = [("train", "gpt2", FOUR, "1f1b"), ("train", "llama", TWO, "chimera"), ("train", "bert", TWO, "gpipe"), ("train", "gemma2", FOUR, "zb-h2"),
         ("train", "olmo2", TWO, "zb-h1"), ("train", "phi3", FOUR, "gpipe"), ("train", "qwen2", TWO, "zb-auto"), ("train", "vit", FOUR, "zb-auto"),
         ("train", "demo", FOUR, "terapipe:slices=2"), ("train", "demo", TWO, "seq1f1b:slices=2"), ("train", "demo", FOUR, "zbv"),
         ("train", "demo", TWO, "dualpipev"), ("train", "demo", FOUR, "interleaved:chunks=2"), ("train", "demo", TWO, "2bw"),
         ("run", "gpt_8block", FOUR, "1f1b"), ("run", "llama_fp16", TWO, "gpipe"), ("run", "gpt_past", FOUR, "1f1b"), ("run", "vision", TWO, "1f1b"),
         ("run", "encoder", FOUR, "chimera"), ("run", "gpt_bf16", TWO, "interleaved:chunks=2")]
check = Checks()


def test_processes_have_the_bits_of_threads():
    ran, there = try_cases(check, CASES), sum(is_there(case[1]) for case in CASES)
    check(ran == there and ran > 0, f"{ran} of {there} ran")


if __name__ == "__main__":
    need_command()
    check.run(globals())
