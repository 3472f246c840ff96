# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1200 label=full
"""Every launcher, torchrun too: bits of threads; a process that is killed, or ends with status 3 or 0 too early or while it closes, ends
all of them within 5 s with a status that is not 0, whether the launcher kills at once, later or nobody; the last checkpoint loads."""
import tempfile

from command import need_command
from faults import all_ends, bits_under
from team_jobs import LAUNCHERS, Checks, words_of

check = Checks()
HERE = [name for name in LAUNCHERS if words_of(name, 2)]


def test_bits_of_threads():
    with tempfile.TemporaryDirectory() as folder:
        bits_under(check, HERE, folder)


def test_ends():
    all_ends(check, HERE)


need_command()
for missing in set(LAUNCHERS) - set(HERE):
    print(f"SKIP: the launcher {missing} is not there")
check.run(globals())
