# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""launch --nodes: a job of several launches, which meet at an address by TCP and prove a token; torchrun's variables in place of options; two network
namespaces, which count as two machines."""
import os
import socket
import subprocess
import sys
import tempfile

from command import COMMAND
from team_kit import TRAIN, Checks, launch, steps

check = Checks()


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def clean(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ONNX_PIPE_TOKEN", "ONNX_PIPE_ADDRESS"))}
    return dict(env, **more)


class Token:
    """A file with a token, and the variable that names it."""

    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile(mode="w")
        self.file.write(os.urandom(24).hex() + "\n")
        self.file.flush()
        return {"ONNX_PIPE_TOKEN_FILE": self.file.name}

    def __exit__(self, *_):
        self.file.close()


def nodes(n, k, address, *words, env=None, before=None):
    """A launch for each of k machines, as threads of time: [(status, output, errors)]."""
    all_of = [subprocess.Popen([*(before[r] if before else []), COMMAND, "launch", "-n", str(n), "--nodes", str(k), "--node", str(r), "--address", address, "--",
                                *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for r in range(k)]
    ended = []
    for one in all_of:
        out, err = one.communicate(timeout=60)
        ended.append((one.returncode, out, err))
    return ended


def test_variables():
    script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $ONNX_PIPE_ADDRESS $TORCHELASTIC_RUN_ID"
    for r, (status, out, err) in enumerate(nodes(2, 2, "node-1:29511", "sh", "-c", script, env=clean())):
        want = [f"[rank {2 * r + i}] {2 * r + i}/4 {i}/2 {r}/2 node-1 29511 node-1:29511 launch-node-1:29511" for i in range(2)]
        check(status == 0 and sorted(out.splitlines()) == want, f"variables of node {r}: {status} {out!r} {err!r}")
    one = subprocess.run([COMMAND, "launch", "--", "sh", "-c", script], capture_output=True, text=True, timeout=60,
                         env=clean(PET_NNODES="2:2", PET_NODE_RANK="1", PET_NPROC_PER_NODE="1", PET_MASTER_ADDR="pod-0", PET_MASTER_PORT="23456"))
    check(one.stdout == "[rank 1] 1/2 0/1 1/2 pod-0 23456 pod-0:23456 launch-pod-0:23456\n", f"PET_*: {one.stdout!r} {one.stderr!r}")
    one = launch(1, "sh", "-c", "echo $MASTER_ADDR ${ONNX_PIPE_ADDRESS-none}", env=clean(ONNX_PIPE_ADDRESS="outer:1"))
    check(one.stdout == "[rank 0] 127.0.0.1 none\n", f"one machine: {one.stdout!r}")


def test_usage():
    for words, env, says in ((["--nodes", "2"], {}, "--nodes 2 needs --node R"),
                             (["--nodes", "2", "--node", "1"], {}, "--nodes 2 needs --address HOST:PORT"),
                             (["--nodes", "2", "--node", "2", "--address", "a:1"], {}, "--node 2: 2 nodes are numbered 0 to 1"),
                             (["--nodes", "2", "--node", "0", "--address", "a"], {}, "--address a: HOST:PORT is expected"),
                             (["--nodes", "4096", "--node", "0", "--address", "a:1"], {}, "2 processes on 4096 nodes, at most 4096"),
                             ([], {"PET_NNODES": "1:4"}, "PET_NNODES is '1:4': a job has one number of machines"),
                             ([], {"PET_NNODES": "2", "PET_NODE_RANK": "x"}, "PET_NODE_RANK is 'x', not a number")):
        done = launch(2, "true", options=words, env=clean(**env))
        check(done.returncode == 2 and says in done.stderr, f"{words} {env}: {done.returncode} {done.stderr!r}")


def test_a_job_of_two_launches():
    with Token() as token:
        ended = nodes(1, 2, free_address(), *TRAIN, "--steps", "2", "--json", env=clean(**token))
    check([e[0] for e in ended] == [0, 0], f"training: {ended}")
    near = launch(2, *TRAIN, "--steps", "2", "--json", env=clean())
    if not check.wrong:
        far = subprocess.CompletedProcess([], 0, ended[0][1], "")
        check(steps(far) == steps(near), "losses and norms are those of one launch")


def namespaces(names):
    """Two network namespaces joined by a cable, 10.99.77.1 and .2. False: there is no right to make them."""
    a, b = names
    cable = [["ip", "netns", "add", a], ["ip", "netns", "add", b], ["ip", "link", "add", "v" + a, "netns", a, "type", "veth", "peer", "name", "v" + b, "netns", b]]
    for name, number in ((a, 1), (b, 2)):
        cable += [["ip", "-n", name, "addr", "add", f"10.99.77.{number}/24", "dev", "v" + name], ["ip", "-n", name, "link", "set", "v" + name, "up"],
                  ["ip", "-n", name, "link", "set", "lo", "up"]]
    try:
        return all(subprocess.run(words, capture_output=True).returncode == 0 for words in cable)
    except OSError:
        return False


def test_namespaces_are_machines():
    names = [f"op{os.getpid() % 100000}{c}" for c in "ab"]
    try:
        if not namespaces(names):
            print("SKIP: no network namespace can be made here")
            return
        inside = [["ip", "netns", "exec", name] for name in names]
        words = [*TRAIN, "--steps", "1", "--transport", "shm"]
        with Token() as token:
            ended = nodes(1, 2, "10.99.77.1:29511", *words, env=clean(**token), before=inside)
        for status, _, err in ended:
            says = "transport 'shm' joins processes of one machine, and the team's 2 processes are of 2 (process 0 of "
            check(status == 3 and says in err, f"a transport of one machine: {status} {err!r}")
        for status, _, err in nodes(1, 2, "10.99.77.1:29511", *words, env=clean(), before=inside):
            check(status == 3 and "export ONNX_PIPE_TOKEN_FILE=FILE" in err, f"without a token: {status} {err!r}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


sys.exit(check.run(globals()))
