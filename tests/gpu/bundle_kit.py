# SPDX-License-Identifier: Apache-2.0
"""Shared by the parts: the bundle's programs, run with its libraries, and their results."""
import concurrent.futures
import functools
import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = bool(os.environ.get("OPIPE_GPU_SMALL"))  # for machines that only act as if they had a GPU
KERNEL_TESTS = "test_map" if SMALL else "test_*"  # of their names
WORK = os.environ.get("OPIPE_GPU_WORK", os.path.join(HERE, "work"))
LOG = WORK       # where failures.log is written; gpu.py puts it beside the record
JOBS = int(os.environ.get("OPIPE_GPU_JOBS", "1"))  # programs at once where nothing is measured
COMMAND = os.path.join(HERE, "bin", "onnx-pipe")
PLUGINS = os.path.join(HERE, "lib", "onnx-pipe")


class NotRun(Exception):
    """Why a line could not be run here; `said`: what was found all the same."""

    def __init__(self, why, said=None):
        super().__init__(why)
        self.said = said


class Failed(Exception):
    """A failure; `said`: results that were found all the same."""

    def __init__(self, why, said=None):
        super().__init__(why)
        self.said = said


class Clock:
    """The seconds that a line has; what is left of them falls as it runs."""

    def __init__(self, seconds):
        self.until = time.monotonic() + seconds

    def left(self):
        return self.until - time.monotonic()


class Line:
    """One line of a part. run(clock): its value. `seconds`: the most that it may take. `wanted`: figures of the value that are aims,
    each with the least that is wanted. `device`: whether it needs one."""

    def __init__(self, name, run, seconds, wanted=None, device=True):
        self.name, self.run, self.seconds, self.wanted, self.device = name, run, seconds, wanted or {}, device


def not_built(what):
    def line(clock):
        raise NotRun(what)
    return line


def vendor_folders():
    """Where pip put the vendor's libraries for this Python: those that its PyTorch takes, so that both sides of a line have the same."""
    roots = [path for path in sys.path if path.endswith("-packages")]
    return sorted({os.path.dirname(path) for root in roots for name in ("libcublasLt.so.1[3-9]", "libcudnn.so.9")
                   for path in glob.glob(os.path.join(root, "nvidia", "*", "lib", name))})


def environment(**more):
    own = dict(os.environ, **more)
    if "OPIPE_CUDA_PATH" not in own and vendor_folders():
        own["OPIPE_CUDA_PATH"] = ":".join(vendor_folders())
    own["LD_LIBRARY_PATH"] = ":".join(x for x in (os.path.join(HERE, "lib"), os.environ.get("LD_LIBRARY_PATH")) if x)
    own["OPIPE_PLUGIN_PATH"] = PLUGINS
    return own


def log(arguments, how, *texts):
    os.makedirs(LOG, exist_ok=True)
    with open(os.path.join(LOG, "failures.log"), "a", encoding="utf-8") as file:
        file.write("$ %s\n%s\n%s\n" % (" ".join(arguments), how, "".join(text or "" for text in texts)))


def text_of(output):
    return output.decode(errors="replace") if isinstance(output, bytes) else output


running = set()           # programs, each the leader of a group: what it starts (compute-sanitizer, ncu) ends with it
starting = threading.Lock()
is_ending = False         # none is started any more


def start(arguments, **more):
    """A program that runs; Failed where each() is being ended."""
    with starting:
        if is_ending:
            raise Failed("%s: not begun, the line was ended" % os.path.basename(arguments[0]))
        program = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more), start_new_session=True)
        running.add(program)
    return program


def kill(program):
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:  # all of it has ended
        pass


def end(program):
    """Ends a program and all of its group: what it had said."""
    kill(program)
    try:
        return program.communicate(timeout=10)
    except subprocess.TimeoutExpired as late:  # what has left the group still holds the pipes
        return text_of(late.stdout), text_of(late.stderr)


def end_all(is_end):
    """Ends all programs that run, and lets none begin; or, is_end False, lets them begin again."""
    global is_ending
    with starting:
        is_ending = is_end
        for program in list(running) if is_end else []:
            kill(program)


def run(arguments, clock, **more):
    """A program's end: subprocess's own result. Failed when it did not end in time, with its words in failures.log."""
    left = clock.left()
    if left <= 0:
        raise Failed("no time was left for %s" % os.path.basename(arguments[0]))
    with start(arguments, **more) as program:
        try:
            out, err = program.communicate(timeout=left)
        except BaseException as why:
            out, err = end(program)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
            log(arguments, "not done after %d s" % left, out, err)
            raise Failed("%s: not done after %d s" % (" ".join(os.path.basename(x) for x in arguments[:2]), left)) from why
        finally:
            running.discard(program)
    return subprocess.CompletedProcess(arguments, program.returncode, out, err)


def command(arguments, clock, refuse=(), **more):
    """stdout of a program; Failed with its last words where its status is not 0, and with the line of a warning that holds one of
    `refuse`, or says that there is no graph where one was asked for."""
    done = run(arguments, clock, **more)
    if done.returncode != 0:
        log(arguments, "status %d" % done.returncode, done.stdout, done.stderr)
        words = (done.stdout + done.stderr).strip().splitlines()
        raise Failed("%s: status %d: %s" % (os.path.basename(arguments[0]), done.returncode, " / ".join(words[-4:])))
    warned = [line for line in done.stderr.splitlines() if any(words in line for words in (*refuse, "no graph:"))]
    if warned:
        log(arguments, "another way than was asked for", done.stdout, done.stderr)
        raise Failed("%s: %s" % (os.path.basename(arguments[0]), warned[0]))
    return done.stdout


def each(function, items):
    """[function(item)], JOBS at once; Failed with the words of all that failed. An interruption (a signal) ends the programs, too."""
    results, failures, begun = [], [], []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        try:
            for item in items:  # a signal may come while programs begin
                begun.append((item, pool.submit(function, item)))
            for item, done in begun:
                try:
                    results.append(done.result())
                except Failed as why:
                    failures.append("%s: %s" % (item, why))
        except BaseException:
            for _, one in begun:
                one.cancel()
            end_all(True)
            pool.shutdown()
            end_all(False)
            raise
    if failures:
        raise Failed("%d of %d: %s" % (len(failures), len(failures) + len(results), "; ".join(failures)))
    return results


def device_missing():
    """Why no GPU can be used; "": one can."""
    clock = Clock(120)
    try:
        listed = json.loads(command([COMMAND, "plugins", "--json"], clock))
        own = [one for one in listed if one.get("id") == "cuda"]
        if not own:
            return "the bundle has no plugin 'cuda'"
        if own[0]["state"] != "open":
            return own[0].get("reason", own[0]["state"]).replace("no device: ", "", 1)
        said = run([COMMAND, "profile", "--cluster", "--cost", "rates", "--device", "cuda"], clock)
    except (Failed, ValueError, OSError) as why:
        return str(why)
    return "" if said.returncode == 0 else said.stderr.strip()


@functools.lru_cache(maxsize=None)
def gpu():
    """The GPU's name and UUID, by which results and what was measured on it are told from another's."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader", "--id=0"], capture_output=True, text=True,
                              timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


@functools.lru_cache(maxsize=None)
def manifest():
    with open(os.path.join(HERE, "manifest.json"), "rb") as file:
        body = file.read()
    said = json.loads(body)
    return {"commit": said["commit"], "image": said.get("image"), "hash": hashlib.sha256(body).hexdigest()[:12]}


def work(name):
    os.makedirs(WORK, exist_ok=True)
    return os.path.join(WORK, name)


def once(path, write):
    """The file, made by write(path of a new file) where it is not there yet: whole, or not there."""
    if not os.path.exists(path):
        write(path + ".new")
        os.replace(path + ".new", path)
    return path


def kernel_tests():
    """The folder of the kernels' tests; None: the bundle has none."""
    packed = os.path.join(HERE, "tests.tar.xz")
    if not os.path.exists(packed):
        return None

    def unpack(folder):
        with tarfile.open(packed) as file:
            file.extractall(folder)
    return os.path.join(once(work("tests-" + manifest()["hash"]), unpack), "tests")


def kernels_image():
    """The module of the kernels: by itself, or cut out of the plugin."""
    path = os.path.join(HERE, "kernels.fatbin")
    inside = manifest()["image"]
    if os.path.exists(path) or inside is None:
        return path

    def cut(out):
        with open(os.path.join(PLUGINS, "opipe-backend-cuda.so"), "rb") as plugin, open(out, "wb") as file:
            plugin.seek(inside[0])
            file.write(plugin.read(inside[1]))
    return once(work("kernels-%s.fatbin" % manifest()["hash"]), cut)


def ceilings(clock):
    """Ceilings of this GPU as gpu-ceilings measured them: {"bf16_tflops", "copy_read_and_write_gb_per_s", ...}."""
    def measure(path):
        said = command([os.path.join(HERE, "bin", "gpu-ceilings"), "--ceilings", *(["--size", "64"] if SMALL else [])], clock)
        with open(path, "w", encoding="utf-8") as file:
            file.write(said)
    key = hashlib.sha256((gpu() + manifest()["hash"]).encode()).hexdigest()[:12]
    with open(once(work("ceilings-%s.json" % key), measure), encoding="utf-8") as file:
        return json.load(file)


# ---- PyTorch ----

@functools.lru_cache(maxsize=None)
def torch_missing():
    """Why PyTorch can't be had with a GPU; "": it can."""
    try:
        said = command([sys.executable, "-c", "import torch; print(torch.cuda.is_available(), torch.__version__)"], Clock(120)).split()
    except Failed as why:
        return "there is no PyTorch: %s" % why
    return "" if said[-2] == "True" else "PyTorch %s sees no GPU" % said[-1]


def peer(clock, *arguments):
    """The last line of peer.py, as JSON; NotRun without PyTorch."""
    if torch_missing():
        raise NotRun(torch_missing())
    out = command([sys.executable, os.path.join(HERE, "peer.py"), *(str(x) for x in arguments)], clock)
    return json.loads(out.strip().splitlines()[-1])
