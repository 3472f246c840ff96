# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Checkpoints of several processes: each writes and reads its own tensors, any number of processes and any schedule goes on from them with
the same bits, and what cannot be written or read is every process's refusal."""
import filecmp
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from command import COMMAND, DATA
from team_kills import ranks_of, steps_saved
from team_kit import TRAIN, Checks, Job, command, launch, manifest, steps, tensors

check = Checks()


def test_any_number_of_processes_goes_on():
    """Losses, norms and the tensors of the next checkpoint are those of threads that never stopped."""
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = os.path.join(folder, "saved"), os.path.join(folder, "whole")
        rest = ["--ranks", "4", "--json"]
        threads = command(*TRAIN, *rest, "--steps", "4", "--save", whole)
        first = launch(4, *TRAIN, *rest, "--steps", "2", "--save", saved)
        check(first.returncode == 0 and threads.returncode == 0, f"saving: {first.stderr}{threads.stderr}")
        found = manifest(saved)
        check(found["version"] == 3 and len(found["shards"]) == 4 and len(os.listdir(saved)) == 9, f"files: {os.listdir(saved)}")
        check(manifest(whole)["version"] == 2 and len(os.listdir(whole)) == 3, f"files of one process: {os.listdir(whole)}")
        for processes, more in ((1, []), (2, []), (4, ["--schedule", "gpipe"]), (2, ["--schedule", "interleaved"])):
            what = f"resumed by {processes} with {more}"
            into = os.path.join(folder, "into")
            words = [*TRAIN, *rest, *more, "--steps", "2", "--resume", saved, "--save", into]
            done = command(*words) if processes == 1 else launch(processes, *words)
            check(done.returncode == 0, f"{what}: {done.stderr}")
            if done.returncode != 0:
                continue
            check(steps(done) == steps(threads)[2:], f"{what}: losses or norms differ")
            check(tensors(into) == tensors(whole), f"{what}: weights or moments differ")
            check(len(manifest(into).get("shards", [1])) == processes, f"{what}: another number of shards")
            shutil.rmtree(into)


def test_both_versions_of_the_weights_go_on():
    """2BW trains by weights one step old, which are in the shards too."""
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = os.path.join(folder, "saved"), os.path.join(folder, "whole")
        rest = ["--ranks", "4", "--schedule", "2bw", "--json"]
        threads = command(*TRAIN, *rest, "--steps", "2", "--save", whole)
        first = launch(2, *TRAIN, *rest, "--steps", "2", "--save", saved)
        check(first.returncode == 0 and tensors(saved) == tensors(whole), f"2bw: {first.stderr}")
        check(any(name.startswith("older/") for name in tensors(saved)), "2bw: there are no older weights")
        more = ["--steps", "2", "--resume"]
        done, again = launch(4, *TRAIN, *rest, *more, saved), command(*TRAIN, *rest, *more, whole)
        check(done.returncode == 0 and steps(done) == steps(again), f"2bw, resumed: {done.stderr}")


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def fields(message):
    """(number, wire type, value) of a protobuf message."""
    at = 0

    def take():
        nonlocal at
        n = shift = 0
        while True:
            byte = message[at]
            n |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return n

    while at < len(message):
        number, wire = divmod(take(), 8)
        size = take() if wire in (0, 2) else 8 if wire == 1 else 4
        value = size if wire == 0 else message[at:at + size]
        at += 0 if wire == 0 else size
        yield number, wire, value


def rewrite(message, change):
    """The message, each field as change(number, value) answers: (number, value)."""
    out = b""
    for number, wire, value in fields(message):
        number, value = change(number, value)
        out += varint(number << 3 | wire) + (varint(value) if wire == 0 else (varint(len(value)) if wire == 2 else b"") + value)
    return out


def halves_as_numbers(path, to):
    """Spells the halves of all initializers (raw_data, 9) as numbers of various lengths (int32_data, 5)."""
    def content(number, value):
        if number != 9:
            return number, value
        return 5, b"".join(varint(int.from_bytes(value[i:i + 2], "little")) for i in range(0, len(value), 2))

    def initializer(number, value):
        if number != 5 or all((n, v) != (2, 16) for n, _, v in fields(value)):
            return number, value
        return number, rewrite(value, content)

    with open(path, "rb") as file, open(to, "wb") as out:
        out.write(rewrite(file.read(), lambda number, value: (number, rewrite(value, initializer) if number == 7 else value)))


def write_ids(path, rows, columns):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    numbers = [(7 * i + i // 5) % 90 for i in range(rows * columns)]
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(numbers)}q", *numbers))


def test_the_model_is_one_file():
    """By several processes, with a tied head, halves in either spelling, and weights outside the file: the bytes are those that one process
    writes."""
    for model, n in (("demo", 4), ("gpt_bf16", 2), ("spelled", 2), ("llama_fp16", 2), ("llama_external", 3)):
        with tempfile.TemporaryDirectory() as folder:
            whole, parts = [os.path.join(folder, name) for name in ("whole", "parts")]
            old = os.path.join(DATA, model, "model.onnx")
            if model == "spelled":
                old = os.path.join(folder, "model.onnx")
                halves_as_numbers(os.path.join(DATA, "gpt_bf16", "model.onnx"), old)
            ids = os.path.join(folder, "ids.npy")
            write_ids(ids, 8, 16)
            words = ["train", old, "--data", "input_ids=" + ids, "--data", "labels=" + ids, *TRAIN[4:]]
            for place, run in ((whole, command), (parts, lambda *more, n=n: launch(n, *more))):
                os.mkdir(place)
                done = run(*words, "--steps", "2", "--ranks", str(n), "--save-model", os.path.join(place, "new.onnx"))
                check(done.returncode == 0, f"{model}: {done.stderr}")
            names = sorted(os.listdir(whole))
            same = names == sorted(os.listdir(parts)) and not any(filecmp.cmpfiles(whole, parts, names, shallow=False)[1:])
            check(same and "new.onnx" in names, f"{model}: {names} {os.listdir(parts)}")
            check(len(names) > 1 or not filecmp.cmp(old, os.path.join(parts, "new.onnx"), shallow=False), f"{model}: nothing was trained")


def test_a_model_that_cannot_be_written():
    """Refused before the first step by all, or by all after a disk is full, and nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "new.onnx")
        for words, status in (([os.path.join(folder, "none", "new.onnx")], 3), ([folder], 3)):
            done = launch(2, *TRAIN, "--steps", "2", "--save-model", *words)
            check(done.returncode == status and "step 1 " not in done.stdout, f"{words}: {done.returncode} {done.stderr}")
            check(done.stderr.count("process 0 (pid ") >= 1, f"{words}: {done.stderr}")
        status, err = fill_disk([*TRAIN, "--steps", "10", "--save-model", path], 1 << 20)
        check(status == 3 and err.count("File too large") >= 2, f"full: {status} {err}")
        check(os.listdir(folder) == [], f"left: {os.listdir(folder)}")


def test_a_shard_that_is_not_there():
    """Named by all processes, whoever needs it; a process alone reads all shards."""
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        first = launch(2, *TRAIN, "--ranks", "4", "--steps", "1", "--save", saved)
        check(first.returncode == 0, f"saving: {first.stderr}")
        path = os.path.join(saved, "weights-1-1.safetensors")
        size = os.path.getsize(path)
        os.truncate(path, size - 100)
        words = [*TRAIN, "--ranks", "4", "--steps", "1", "--resume", saved]
        for done, n in ((launch(2, *words), 2), (command(*words), 1)):
            said = done.stderr.count("shard 2 of 2: weights-1-1.safetensors: tensor '")
            check(done.returncode == 3 and said >= n, f"truncated, {n} processes: {done.returncode} {done.stderr}")
        os.unlink(path)
        done = launch(2, *words)
        check(done.returncode == 3 and done.stderr.count("opening weights-1-1.safetensors") >= 2, f"missing: {done.stderr}")


def test_the_folder_is_the_same_one():
    """A name that leads elsewhere in another process is refused by all, before the first step, with both folders."""
    with tempfile.TemporaryDirectory() as folder:
        places = [os.path.join(folder, name) for name in ("one", "other")]
        for place in places:
            os.mkdir(place)
        os.mkdir(os.path.join(places[1], "saved"))
        for rank, (status, err, out) in enumerate(Job(2, *TRAIN, "--steps", "1", "--save", "saved", folders=places).end()):
            both = all(os.path.join(place, "saved") in err for place in places)
            check(status == 3 and both and "step 1 " not in out, f"process {rank}: {status} {err}")
        check(os.listdir(places[0]) == [] and os.listdir(os.path.join(places[1], "saved")) == [], "something is left")


def fill_disk(words, size, number=None):
    """Two processes, whose files may grow to so many bytes from their second step on: a write beyond answers as a full disk does. They are
    sent a signal then. The launch's (status, error text)."""
    job = subprocess.Popen([COMMAND, "launch", "-n", "2", "--", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    check(any("step 2 " in line for line in job.stdout), f"nothing trains: {words}")
    for rank in ranks_of(job):
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (size, size))
    if number is not None:
        job.send_signal(number)
    err = job.communicate(timeout=60)[1]
    return job.returncode, err


def test_a_full_disk_is_every_processs():
    """A limit on files' sizes stops one process's shard or all; the earlier checkpoint goes on."""
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        rest = ["--ranks", "2", "--json", "--steps"]
        first = launch(2, *TRAIN, *rest, "1", "--save", saved)
        check(first.returncode == 0, f"saving: {first.stderr}")
        before, files = tensors(saved), sorted(os.listdir(saved))
        sizes = [os.path.getsize(os.path.join(saved, f"state-1-{rank}.safetensors")) for rank in (0, 1)]
        limit = max(sizes) - 1
        check(min(sizes) < limit, f"the shards do not differ: {sizes}")
        words = [*TRAIN, "--ranks", "2", "--steps", "1000000", "--resume", saved, "--save", saved]
        status, err = fill_disk(words, limit, signal.SIGUSR1)
        victim = sizes.index(max(sizes))
        said = [line for line in err.splitlines() if f"process {victim} (pid " in line and "File too large" in line]
        check(status == 3 and len({line.split("]")[0] for line in said}) == 2, f"full: {status} {err}")
        check(sorted(os.listdir(saved)) == files and tensors(saved) == before, f"full: {os.listdir(saved)}")
        done, threads = launch(2, *TRAIN, *rest, "1", "--resume", saved), command(*TRAIN, *rest, "2")
        check(done.returncode == 0 and steps(done) == steps(threads)[1:], f"after a full disk: {done.stderr}")


def until(what, seconds=20):
    """Waits until what() is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.01)
    return False


def generation(folder):
    try:
        return manifest(folder)["generation"]
    except (OSError, ValueError):
        return 0


def test_a_signal_asks_for_a_checkpoint():
    """SIGUSR1 to one process, to all through launch, or to one alone: one checkpoint each time, of one step, and training goes on."""
    rest = ["--steps", "1000000", "--ranks", "2", "--save"]
    for what in ("one of two", "launch", "alone"):
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            if what == "one of two":
                job = Job(2, *TRAIN, *rest, saved)
            else:
                job = Job(1, *([*(["launch", "-n", "2", "--"] if what == "launch" else []), *TRAIN, *rest, saved]))
            check(job.until("step 2 " if what != "launch" else "[rank 0] step 2 "), f"{what}: nothing trains")
            for n in (1, 2):
                job.all[-1].send_signal(signal.SIGUSR1)
                check(until(lambda n=n: generation(saved) == n), f"{what}: checkpoint {n} does not come")
            middle = manifest(saved)["steps"]
            check(until(lambda: any(f"step {middle + 3} " in line for line in job.all[0].stdout)), f"{what}: it does not go on after {middle}")
            check(generation(saved) == 2, f"{what}: {generation(saved)} checkpoints")
            job.all[0].send_signal(signal.SIGTERM)
            ended = job.end()
            said = "".join(err for _, err, _ in ended)
            check([status for status, _, _ in ended] == [143] * len(job.all), f"{what}: {ended}")
            check(said.count("SIGUSR1: the checkpoint after ") == 2, f"{what}: {said}")
            last = manifest(saved)["steps"]
            check(last > middle and f"stopped after {last} of" in said and generation(saved) == 3, f"{what}: {last} {said}")
            if what != "one of two":
                continue
            whole = os.path.join(folder, "whole")
            rerun = command(*TRAIN, "--steps", str(last), "--ranks", "2", "--save", whole)
            check(rerun.returncode == 0 and tensors(whole) == tensors(saved), "saving has changed the training")


def test_a_signal_without_a_folder():
    job = Job(2, *TRAIN, "--steps", "1000000", "--ranks", "2")
    check(job.until("step 2 "), "nothing trains")
    job.all[1].send_signal(signal.SIGUSR1)
    check(job.until("step 20 "), "it does not go on")
    job.all[1].send_signal(signal.SIGINT)
    ended = job.end()
    check([status for status, _, _ in ended] == [130, 130] and "there is no checkpoint without --save" in ended[0][1], f"{ended}")


def restarted(words, saved, steps_before_kill):
    """A launch that restarts, one of whose processes is killed once so many steps are saved."""
    job = subprocess.Popen([COMMAND, "launch", "-n", "2", "--restarts", "2", "--", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = job.stdout.readline() if steps_before_kill == 0 else ""
    while steps_before_kill == 0 and first and " step 1 " not in first:
        first = job.stdout.readline()
    check(steps_before_kill == 0 or until(lambda: steps_saved(saved) >= steps_before_kill), "nothing is saved")
    ranks = ranks_of(job)
    if ranks:
        os.kill(ranks[-1], signal.SIGKILL)
    out, err = job.communicate(timeout=100)
    check(job.returncode == 0 and err.count("restart 1 of 2") == 1 and "restart 2" not in err, f"restarted: {job.returncode} {err}")
    return out


def test_a_restart_goes_on():
    """Losses, weights and the model's file are those of a run that nobody disturbed, also where the length is given in epochs."""
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = os.path.join(folder, "saved"), os.path.join(folder, "whole")
        words = [*TRAIN, "--ranks", "2", "--bind", "seq=16", "--epochs", "2", "--shuffle", "--seed", "3", "--lr-schedule", "cosine:warmup=5"]
        own = command(*words, "--save", whole, "--save-model", whole + ".onnx")
        check(own.returncode == 0, f"alone: {own.stderr}")
        out = restarted([*words, "--save", saved, "--save-every", "5", "--save-model", saved + ".onnx"], saved, 10)
        check(tensors(saved) == tensors(whole), "restarted: weights or moments differ")
        check(filecmp.cmp(saved + ".onnx", whole + ".onnx", shallow=False), "restarted: the models differ")
        lines = re.findall(r"step \d+ +loss [\d.]+ +norm [\d.e-]+", own.stdout)
        again = re.findall(r"step \d+ +loss [\d.]+ +norm [\d.e-]+", out)
        check(len(lines) > 20 and again and again[-1] == lines[-1] and set(again) == set(lines), "restarted: losses differ")


def test_a_restart_leaves_others_checkpoints():
    """A run that may replace a checkpoint and dies before its own first one begins again, and not from what it found."""
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = os.path.join(folder, "saved"), os.path.join(folder, "whole")
        words = [*TRAIN, "--ranks", "2", "--bind", "seq=16", "--steps", "60"]
        own, other = command(*words, "--save", whole), command(*words, "--seed", "5", "--shuffle", "--save", saved)
        check(own.returncode == 0 and other.returncode == 0 and tensors(saved) != tensors(whole), f"alone: {own.stderr}{other.stderr}")
        restarted([*words, "--save", saved, "--overwrite"], saved, 0)
        check(manifest(saved)["steps"] == 60 and tensors(saved) == tensors(whole), "it has gone on from another run's checkpoint")


def test_a_death_while_all_agree_on_a_step():
    """A process that stands still cannot answer, and dies: the others end with status 3, and the checkpoint before is there."""
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        job = Job(3, *TRAIN, "--steps", "1000000", "--ranks", "3", "--save", saved)
        check(job.until("step 2 "), "nothing trains")
        job.all[0].send_signal(signal.SIGUSR1)
        check(until(lambda: generation(saved) == 1), "no checkpoint comes")
        job.all[2].send_signal(signal.SIGSTOP)
        job.all[1].send_signal(signal.SIGTERM)
        time.sleep(0.3)
        job.all[2].kill()
        for rank, (status, err, _) in enumerate(job.end(but=2)[:2]):
            named = f"process 2 (pid {job.all[2].pid})" in err or "rank 2" in err
            check(status == 3 and named, f"process {rank}: {status} {err}")
        check(generation(saved) == 1, f"{generation(saved)} checkpoints")
        done = command(*TRAIN, "--steps", "1", "--ranks", "3", "--resume", saved)
        check(done.returncode == 0, f"resumed: {done.stderr}")


sys.exit(check.run(globals()))
