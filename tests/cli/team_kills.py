# SPDX-License-Identifier: Apache-2.0
"""Random processes of a run that saves after every step are killed at random instants. After each, the checkpoint must load and go on with
the bits of a run that nobody disturbed: by threads, and by the next processes, which are killed in their turn."""
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

from command import COMMAND
from faults import OVER
from team_kit import TRAIN, command, manifest, steps

STEPS = 100  # after which a run starts again from nothing


def ranks_of(launch):
    """Processes that a launch has started."""
    try:
        with open(f"/proc/{launch.pid}/task/{launch.pid}/children", encoding="utf-8") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def steps_saved(folder):
    try:
        return manifest(folder)["steps"]
    except (OSError, ValueError):
        return 0


def killed_run(words, n, saved, chance):
    """Kills one of n processes some time after they were started, or after the next save; the launch's (status, error text), and when."""
    before, wait = steps_saved(saved), chance.uniform(0.1, 0.5)
    launch = subprocess.Popen([COMMAND, "launch", "-n", str(n), "--", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if chance.random() < 0.7:
        end = time.monotonic() + 20
        while steps_saved(saved) <= before and launch.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        wait /= 2
    time.sleep(wait)
    found = ranks_of(launch)
    if found:
        os.kill(found[chance.randrange(len(found))], signal.SIGKILL)
    err = launch.communicate(timeout=60)[1]
    return launch.returncode, err, wait


def main(n_kills, seed, over=None):
    """over: one of OVER, of the processes' messages."""
    chance, wrong, n_saved = random.Random(seed), [], 0
    apart, together = OVER[over]
    print(f"seed {seed}, {n_kills} kills{', over ' + over if over else ''}")
    words = [*TRAIN, "--ranks", "4", "--bind", "seq=16"]
    whole = command(*words, *together, "--steps", str(STEPS + 1), "--json")
    if whole.returncode != 0:
        print(whole.stderr)
        return 1
    want = steps(whole)
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        for kill in range(n_kills):
            before, n = steps_saved(saved), chance.choice((2, 4))
            if before >= STEPS // 2:
                shutil.rmtree(saved)
                before = 0
            resume = ["--resume", saved] if before else []
            more = ["--steps", str(STEPS - before), "--save", saved, "--save-every", "1", *resume]
            status, err, wait = killed_run([*words, *apart, *more], n, saved, chance)
            after = steps_saved(saved)
            what = f"kill {kill} after {wait:.3f} s, {n} processes, steps {before} to {after}"
            print(what)
            n_saved += after > before
            if after < before or status not in (0, 137):
                wrong.append(f"{what}: status {status}: {err}")
            if after == 0:
                continue
            done = command(*words, *together, "--steps", "1", "--resume", saved, "--json")
            if done.returncode != 0 or steps(done) != want[after:after + 1]:
                wrong.append(f"{what}: resumed: {done.returncode} {done.stderr} {done.stdout[-200:]}")
        resume = ["--resume", saved] if steps_saved(saved) else []
        last = command("launch", "-n", "2", "--", *words, *apart, "--steps", "1", "--save", saved, *resume)
        if last.returncode != 0 or len(os.listdir(saved)) != 5:
            wrong.append(f"the last save leaves {os.listdir(saved)}: {last.stderr}")
    if n_saved == 0:
        wrong.append(f"none of {n_kills} runs had saved")
    for line in wrong:
        print("WRONG: " + line)
    return 1 if wrong else 0
