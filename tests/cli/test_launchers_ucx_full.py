# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=2400 label=full
"""The same as test_launchers_full.py with all messages by UCX over the loopback; and by the variables of srun alone."""
import filecmp
import os
import sys
import tempfile

import faults
from command import need_command, run
from team_jobs import GPT, LAUNCHERS, Checks, Job, words_of
from test_team_ucx import ALL_BY_UCX, is_there

check = Checks()


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
