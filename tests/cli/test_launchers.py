# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""run and train under other people's launchers, mpirun of Open MPI and mpiexec of Hydra: bits of threads; a process that is killed ends
all of them in time, and the last checkpoint loads."""
import filecmp
import json
import os
import signal
import sys
import tempfile

from command import need_command, run
from team_jobs import GPT, SLOW, TRAIN, Checks, Launched, until, words_of

check = Checks()
HERE = [name for name in ("openmpi", "hydra") if words_of(name, 2)]
for missing in {"openmpi", "hydra"} - set(HERE):
    print(f"SKIP: the launcher {missing} is not installed: ./dev deps")


def steps(text):
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in json.loads(text[text.index("{"):text.rindex("}") + 1])["steps"]]


def test_bits_of_threads():
    with tempfile.TemporaryDirectory() as folder:
        rest = ["--steps", "3", "--ranks", "2", "--json"]
        own = os.path.join(folder, "threads")
        threads = run(*TRAIN, *rest, "--save", own)
        run("run", GPT, "--ranks", "2", "-o", own + "-run")
        for name in HERE:
            saved = os.path.join(folder, name)
            job = Launched(name, 2, *TRAIN, *rest, "--save", saved)
            until(lambda: job.main.poll() is not None, 60)
            out = job.text(job.out)
            status, text, _ = job.end()
            check(status == 0 and steps(out) == steps(threads.out), f"{name}, train: {status}: {text}")
            check(filecmp.cmp(os.path.join(own, "weights-1.safetensors"), os.path.join(saved, "weights-1.safetensors"), shallow=False), f"{name}: weights differ")
            status, text, _ = Launched(name, 2, "run", GPT, "-o", saved + "-run").end()
            names = os.listdir(own + "-run")
            check(status == 0 and names and not any(filecmp.cmpfiles(own + "-run", saved + "-run", names, shallow=False)[1:]), f"{name}, run: {status}: {text}")


def steps_saved(folder):
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            return int(json.load(file)["steps"])
    except (OSError, ValueError, KeyError):
        return 0


def try_death(name, victim, folder):
    """One process is killed after a checkpoint: all are gone within 5 s, and the checkpoint loads."""
    what = f"{name}, rank {victim} is killed"
    saved = os.path.join(folder, f"{name}-{victim}")
    job = Launched(name, 2, *TRAIN, "--ranks", "2", "--steps", "1000000", "--save", saved, "--save-every", "4")
    there = until(lambda: steps_saved(saved) >= 4 or job.main.poll() is not None, 60) and job.main.poll() is None
    if check(there, f"{what}: no checkpoint: {job.text(job.err)}"):
        os.kill(job.processes()[victim], signal.SIGKILL)
    status, text, seconds = job.end(20)
    check(status not in (0, None), f"{what}: {status}: {text}")
    check(seconds < 5 * SLOW, f"{what}: {seconds:.1f} s until all had ended")
    again = run(*TRAIN, "--ranks", "2", "--steps", "1", "--resume", saved)
    check(again.status == 0, f"{what}: the checkpoint does not load: {again.err}")


def test_deaths():
    with tempfile.TemporaryDirectory() as folder:
        for victim, name in enumerate(HERE):
            try_death(name, victim, folder)


if not HERE:
    sys.exit(77)
need_command()
check.run(globals())
