# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""Checkpoints of several processes: each writes and reads its own tensors, any number of processes and any schedule goes on from them with
the same bits, and what cannot be written or read is every process's refusal."""
import os
import resource
import shutil
import signal
import sys
import tempfile

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


def limit_files(size):
    """A write beyond the size answers as a full disk does, without a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


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
        full = launch(2, *TRAIN, *rest, "1", "--resume", saved, "--save", saved, preexec_fn=lambda: limit_files(limit))
        victim = sizes.index(max(sizes))
        said = [line for line in full.stderr.splitlines() if f"process {victim} (pid " in line and "File too large" in line]
        check(full.returncode == 3 and len({line.split("]")[0] for line in said}) == 2, f"full: {full.returncode} {full.stderr}")
        check(sorted(os.listdir(saved)) == files and tensors(saved) == before, f"full: {os.listdir(saved)}")
        done, threads = launch(2, *TRAIN, *rest, "1", "--resume", saved), command(*TRAIN, *rest, "2")
        check(done.returncode == 0 and steps(done) == steps(threads)[1:], f"after a full disk: {done.stderr}")


sys.exit(check.run(globals()))
