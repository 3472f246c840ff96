# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run and train under other people's launchers, mpirun of Open MPI and mpiexec of Hydra: bits of threads; a process that is killed ends
all of them in time, and the last checkpoint loads."""
import sys
import tempfile

from command import need_command
from faults import bits_under, launcher_ends
from team_jobs import GPT, Checks, Job, Launched, words_of

check = Checks()
HERE = [name for name in ("openmpi", "hydra") if words_of(name, 2)]
for missing in {"openmpi", "hydra"} - set(HERE):
    print(f"SKIP: the launcher {missing} is not installed: ./dev deps")


def test_bits_of_threads():
    with tempfile.TemporaryDirectory() as folder:
        bits_under(check, HERE, folder)


def test_deaths():
    with tempfile.TemporaryDirectory() as folder:
        for victim, name in enumerate(HERE):
            launcher_ends(check, name, "kill", "outside", victim, folder)


def test_the_first_complete_set_counts():
    """A launcher inside another: the outer one's variables are complete, and count; --launcher says otherwise. A part of a set is refused;
    a Slurm allocation without a step is none."""
    if "openmpi" in HERE:
        nested = [*words_of("launch", 1), *words_of("openmpi", 2)]
        job = Launched(nested, 2, "run", GPT, "--ranks", "2")
        status, text, _ = job.end()
        says = "this is rank 0 of 1 by the variables of torchrun, which count as a whole; openmpi says rank 1 of 2"
        check(status == 0 and text.count("output logits") == 2 and says in text, f"nested: {status}: {text}")
        status, text, _ = Launched(nested, 2, "run", GPT, "--launcher", "openmpi").end()
        check(status == 0 and text.count("output logits") == 1 and "count as a whole" not in text, f"nested, --launcher openmpi: {status}: {text}")
    slurm = [{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r), "SLURM_STEP_NUM_TASKS": "2"} for r in (0, 1)]
    ended = Job(2, "run", GPT, env=dict(enumerate(slurm)), torchrun=False).end()
    check([status for status, _, _ in ended] == [0, 0] and sum("output logits" in text for _, text, _ in ended) == 1, f"srun: {ended}")
    for names, statuses, says in ((("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), [0, 0], "output logits"),
                                  (("SLURM_STEP_ID", "SLURM_PROCID"), [3, 3], "but SLURM_STEP_NUM_TASKS, SLURM_JOB_ID are not")):
        ended = Job(2, "run", GPT, "--ranks", "2", env={r: {name: slurm[r][name] for name in names} for r in (0, 1)}, torchrun=False).end()
        check([status for status, _, _ in ended] == statuses and all(says in text for _, text, _ in ended), f"{names}: {ended}")


if not HERE:
    sys.exit(77)
need_command()
check.run(globals())
