# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes for tests: started by launch, by a launcher of somebody else, or one by one with torchrun's
variables; who its processes are, how they ended, and that nothing of them is left."""
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from command import COMMAND, DATA, SANITIZED, SOURCE

SLOW = 5 if SANITIZED else 1
DEMO = os.path.join(DATA, "demo", "model.onnx")
GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
TRAIN = ["train", DEMO, "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "4", "--microbatches", "4"]
MARK = "OPIPE_TEST_JOB"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LAUNCHERS = ("launch", "openmpi", "hydra", "torchrun")
numbers = itertools.count(1)


def words_of(launcher, n):
    """How `launcher` starts n processes of a command; None where it is not there."""
    if launcher == "launch":
        return [COMMAND, "launch", "-n", str(n), "--"]
    if launcher == "torchrun":
        python = os.path.join(SOURCE, "build", "venv", "real", "bin", "python")
        found = subprocess.run([python, "-c", "import torch.distributed.run"], capture_output=True, check=False) if os.path.exists(python) else None
        run = [python, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", str(n)]
        return run if found is not None and found.returncode == 0 else None
    program = {"openmpi": "mpirun.openmpi", "hydra": "mpiexec.hydra"}[launcher]
    more = ["--oversubscribe"] if launcher == "openmpi" else []
    return [program, *more, "-n", str(n)] if shutil.which(program) else None


def environment(job, more=None):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **{MARK: job})
    env.update(more or {})
    return env


def processes(job):
    """{rank: pid} of the job's processes of onnx-pipe that are there and no zombies."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(v.split("=", 1) for v in file.read().decode(errors="replace").split("\0") if "=" in v)
            if variables.get(MARK) != job or os.readlink(f"/proc/{pid}/exe") != os.path.realpath(COMMAND):
                continue
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        rank = next((variables[name] for name in RANKS if name in variables), None)
        if rank is not None and state not in "ZX":
            found[int(rank)] = int(pid)
    return found


def sockets(text):
    """Abstract unix sockets of this name that are there."""
    with open("/proc/net/unix", encoding="utf-8") as file:
        return [line.split()[-1] for line in file if text in line]


def until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Launched:
    """A launcher, by name or as words, with its processes; what it prints goes to files."""

    def __init__(self, launcher, n, *words, more=None):
        self.job = f"{os.getpid()}-{next(numbers)}"
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        begin = words_of(launcher, n) if isinstance(launcher, str) else launcher
        self.main = subprocess.Popen([*begin, COMMAND, *words], stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                     env=environment(self.job, more), start_new_session=True)

    def text(self, file):
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    def says(self, pattern, seconds=60):
        """Waits until rank 0 has printed a line of this pattern."""
        return until(lambda: re.search(pattern, self.text(self.out), re.M) or self.main.poll() is not None, seconds) and self.main.poll() is None

    def processes(self):
        return processes(self.job)

    def end(self, seconds=60):
        """(status, text, seconds until the launcher and all processes had ended); status None: something hangs."""
        began = time.monotonic()
        ended = until(lambda: self.main.poll() is not None and not self.processes(), seconds)
        took = time.monotonic() - began
        status = self.main.returncode if ended else None
        for pid in [] if ended else [*self.processes().values(), self.main.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.main.wait()
        text = self.text(self.out) + self.text(self.err)
        self.out.close()
        self.err.close()
        return status, text, took


class Job:
    """Processes as torchrun starts them, without a launcher: each one's status and text can be seen. more: words of single ranks;
    env: variables of single ranks; enter: called in the new process of a rank; torchrun: with its variables."""

    def __init__(self, n, *words, more=None, env=None, enter=None, torchrun=True):
        self.job = f"{os.getpid()}-{next(numbers)}"
        self.all, self.files = [], []
        for rank in range(n):
            variables = dict(RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT="20000",
                             TORCHELASTIC_RUN_ID=f"test-{self.job}") if torchrun else {}
            variables.update((env or {}).get(rank) or {})
            file = tempfile.TemporaryFile()
            self.files.append(file)
            self.all.append(subprocess.Popen([COMMAND, *words, *((more or {}).get(rank) or [])], env=environment(self.job, variables),
                                             stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=(enter or {}).get(rank)))

    def text(self, rank):
        return os.pread(self.files[rank].fileno(), 1 << 24, 0).decode(errors="replace")

    def says(self, pattern, seconds=60, rank=0):
        return until(lambda: re.search(pattern, self.text(rank), re.M) or self.all[rank].poll() is not None, seconds) and \
            self.all[rank].poll() is None

    def end(self, but=(), seconds=60):
        """[(status, text, seconds since now)] of all but those, which are killed then; status None: it hangs."""
        began, ended = time.monotonic(), [None] * len(self.all)
        waiting = {rank for rank in range(len(self.all)) if rank not in but}
        while waiting and time.monotonic() - began < seconds:
            for rank in list(waiting):
                if self.all[rank].poll() is not None:
                    ended[rank] = (self.all[rank].returncode, time.monotonic() - began)
                    waiting.discard(rank)
            time.sleep(0.002)
        for process in self.all:
            if process.poll() is None:
                process.kill()
            process.wait()
        result = [(None, self.text(r), seconds) if e is None else (e[0], self.text(r), e[1]) for r, e in enumerate(ended)]
        for file in self.files:
            file.close()
        return result


class Checks:
    """Counts the failed checks; the exit status of a test."""

    def __init__(self):
        self.wrong = 0

    def __call__(self, holds, what):
        if not holds:
            self.wrong += 1
            print("WRONG: " + what, flush=True)
        return bool(holds)

    def run(self, tests):
        for name, test in sorted(tests.items()):
            if name.startswith("test_"):
                began = time.monotonic()
                test()
                print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        sys.exit(1 if self.wrong else 0)
