# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Processes of a team under each of the six rules of transports: the bits are those of threads, with a checkpoint, and inputs and outputs
that travel. Beyond `stream` nothing of what sessions tell each other may go through the transport, which refuses it."""
import os

from command import BUILD, need_command
from equal import try_cases
from team_jobs import Checks

PLUGINS = os.path.join(BUILD, "tests", "plugins")
TWO, FOUR = (2, 4), (4, 4)
TRAINS, RUNS = ("train", "demo", TWO, "1f1b"), ("run", "gpt_8block", FOUR, "1f1b")
CASES = (("tag", [RUNS]), ("stream", [RUNS]), ("edge", [TRAINS]), ("pair", [RUNS]), ("blocking", [TRAINS]),
         ("grouped", [("train", "demo", FOUR, "chimera"), RUNS]))
check = Checks()


def test_every_rule_has_the_bits_of_threads():
    os.environ["OPIPE_PLUGIN_PATH"] = os.path.join(BUILD, "lib", "onnx-pipe") + ":" + PLUGINS
    for number, (name, cases) in enumerate(CASES):
        os.environ["OPIPE_RULE"] = str(number)
        print(f"rule {name}:", flush=True)
        ran = try_cases(check, cases, transport="impaired")
        check(ran == len(cases), f"rule {name}: {ran} of {len(cases)} ran")


if __name__ == "__main__":
    need_command()
    check.run(globals())
