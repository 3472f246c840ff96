# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of teams over transport-nccl: processes on the doubles of CUDA and NCCL, each on a GPU of its own; what they print
against the plan's reference; faults at a launch, by phase."""
import json
import os
import re
import sys
import tempfile

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
from command import BUILD, DATA, need_command  # noqa: E402
from equal import SCHEDULES  # noqa: E402,F401
from small import write_data, write_model  # noqa: E402
from team_jobs import SLOW, TRAIN, Job  # noqa: E402

DOUBLES = os.path.join(BUILD, "tests", "cuda")
LLAMA = os.path.join(DATA, "llama_8block", "model.onnx")
# How a rank goes wrong, and when: the double's word for the phase, in a run of two ranks under chimera (test_teams_full counts launches).
FAULTS = {"killed": "die", "silent": "silent", "late error": "error", "abort": None}
PHASES = {"start": "init", "connecting": "1", "warm-up": "4", "steady": "30", "reduction": "sum:6", "close": "finalize"}
# The abort's phase: the number of a kernel that faults, which ends the rank, and by it the others.
KERNELS = {"warm-up": "1", "steady": "60", "reduction": "100"}
SILENCE, LONGER = 1, 5  # seconds: where the watchdog is to speak first, and where others are, also on a busy machine


def need_doubles():
    need_command()
    if not os.path.exists(os.path.join(DOUBLES, "libnccl.so.2")):
        print("SKIP: the doubles of CUDA need a C++ compiler at build")
        sys.exit(77)


def job(n, words, one_gpu=False, env=None, report=None):
    """n processes; env: variables of single ranks; report: a file for the doubles' counts."""
    common = {"OPIPE_CUDA_PATH": DOUBLES, "OPIPE_PLUGIN_PATH": os.path.join(DOUBLES, "plugins") + ":" + os.path.join(BUILD, "lib", "onnx-pipe"),
              "OPIPE_CUDA_DOUBLE_DEVICES": "4", "OPIPE_CUDA_DOUBLE_ALIKE": "1"}
    common.update({"OPIPE_NCCL_DOUBLE_REPORT": report} if report else {})
    own = {rank: dict(common, OPIPE_CUDA_DOUBLE_SEED=str(rank + 1), **((env or {}).get(rank) or {})) for rank in range(n)}
    more = {rank: ["--device", f"cuda:{0 if one_gpu else rank}"] for rank in range(n)}
    return Job(n, *words, "--fallback", "none", more=more, env=own)


def words_of(name, folder):
    """The words that train a small network, or run a model of the project's."""
    if name == "small":
        model = write_model(os.path.join(folder, "model.onnx"))
        return ["train", model, *write_data(folder), "--batch", "4", "--microbatches", "4", "--steps", "2"]
    if name == "demo":
        return [*TRAIN, "--bind", "seq=8", "--steps", "2"]
    return ["run", LLAMA, "--bind", "batch=2,seq=8", "--requests", "2"]


def counts(path):
    """The counts of the processes' doubles, a dictionary each."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(check, name, n, words, sums, seed=1):
    """Against the plan's reference, which process 0 runs: the same bits, or with sums within the limits of other orders. No connection is
    made late. False: the schedule is refused."""
    what = f"{name}, {n} processes, {' '.join(words)}"
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        env = {rank: {"OPIPE_NCCL_DOUBLE_SEED": str(seed)} for rank in range(n)}
        run = job(n, [*words_of(name, folder), "--transport", "nccl", "--ranks", str(n), "--reference", *words], env=env, report=report)
        ended = run.end(seconds=60 * SLOW)
        seen = counts(report) if os.path.exists(report) else []
    text, statuses = ended[0][1], [status for status, _, _ in ended]
    if statuses[0] in (2, 3) and len(set(statuses)) == 1 and not seen:
        print(f"{what}: refused: {text.strip().splitlines()[-1]}", flush=True)
        return False
    if not check(statuses == [0] * n, f"{what}: {ended}"):
        return True
    said = re.search(r"(?m)^plan's reference +(bit-equal|close)|^(identical|close) to the plan's reference", text)
    found = said and next(word for word in said.groups() if word)
    check(found in ("bit-equal", "identical") or (sums and found == "close"), f"{what}: {found}: {text[-900:]}")
    check(not sums or "sums over ranks: unordered (by transport 'nccl')" in text, f"{what}: the plan does not say that its sums have no order")
    check(len(seen) == n and all(one["late"] == 0 and one["aborts"] == 0 for one in seen), f"{what}: {seen}")
    print(f"{what}: {found}; {seen[0]['launches']} launches", flush=True)
    return True


# ---- faults ----

def strike(check, fault, phase, victim=1, late_ms=0):
    """One rank of two goes wrong: all end in time, with a reason that says so; the survivors' last operations are written. late_ms: so
    much later does NCCL abort a communicator of the survivor's."""
    what = f"{fault} at {phase}, rank {victim}" + (f", aborted {late_ms} ms late" if late_ms else "")
    with tempfile.TemporaryDirectory() as folder:
        env = {rank: {"TMPDIR": folder} for rank in range(2)}
        env[1 - victim].update({"OPIPE_NCCL_DOUBLE_ABORT_MS": str(late_ms)} if late_ms else {})
        env[victim].update({"OPIPE_NCCL_DOUBLE_FAULT": f"{FAULTS[fault]}@{PHASES[phase]}"} if FAULTS[fault] else
                           {"OPIPE_CUDA_DOUBLE_FAULT": KERNELS[phase]})
        words = [*words_of("small", folder), "--transport", "nccl", "--ranks", "2", "--schedule", "chimera", "--steps", "12"]
        run = job(2, [*words, "--silence", str((SILENCE if fault == "silent" else LONGER) * SLOW)], env=env)
        pid = run.all[victim].pid
        ended = run.end(seconds=30 * SLOW)
        written = [name for name in os.listdir(folder) if name.startswith("onnx-pipe-nccl-rank")]
        records = [json.load(open(os.path.join(folder, name), encoding="utf-8")) for name in written]
    judge(check, what, fault, phase, victim, pid, ended)
    opened = phase in ("warm-up", "steady", "reduction")
    ranks = {record["rank"] for record in records}
    check(not opened or {1 - victim} <= ranks, f"{what}: no record of rank {1 - victim}: {written}")
    check(all(record["why"] and (record["launches"] > 0 or not opened) for record in records), f"{what}: {records}")
    print(f"{what}: {[f'{seconds:.1f} s' for _, _, seconds in ended]}", flush=True)


def judge(check, what, fault, phase, victim, pid, ended):
    """Statuses, reasons, time. A run that is over has its results: what happens at its close is no failure but a death."""
    wanted = {"killed": rf"process {victim} \(pid {pid}\) has died",
              "late error": r"the test lets (launch \d+|the communicator) fail|the communicator has failed",
              "abort": rf"rank {victim}[,:].*context is lost",
              "silent": r"watchdog: rank \d of process \d .* for \d|was not ready within|has waited \d+ s for"}[fault]
    over = phase == "close" and fault != "killed"
    for rank, (status, text, seconds) in enumerate(ended):
        check(seconds < (SILENCE + 9) * SLOW, f"{what}, process {rank}: {seconds:.1f} s")
        if rank == victim and fault == "killed":
            check(status == -9, f"{what}, process {rank}: {status}: {text}")
        else:
            check(status == (0 if over else 3), f"{what}, process {rank}: {status}: {text}")
            check(over or re.search(wanted, text), f"{what}, process {rank}: not '{wanted}': {text}")
