# SPDX-License-Identifier: Apache-2.0
"""What the parts share: the bundle's programs, run with its libraries; what became of them."""
import concurrent.futures
import json
import os
import subprocess
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
SMALL = bool(os.environ.get("OPIPE_GPU_SMALL"))  # for machines that only act as if they had a GPU
WORK = os.environ.get("OPIPE_GPU_WORK", os.path.join(HERE, "work"))
JOBS = int(os.environ.get("OPIPE_GPU_JOBS", "1"))  # programs at once where nothing is measured
COMMAND = os.path.join(HERE, "bin", "onnx-pipe")
PLUGINS = os.path.join(HERE, "lib", "onnx-pipe")


class NotRun(Exception):
    """Why a line could not be run here."""


class Failed(Exception):
    """What went wrong."""


def environment(**more):
    own = dict(os.environ, **more)
    own["LD_LIBRARY_PATH"] = ":".join(x for x in (os.path.join(HERE, "lib"), os.environ.get("LD_LIBRARY_PATH")) if x)
    own["OPIPE_PLUGIN_PATH"] = PLUGINS
    return own


def command(arguments, seconds, wanted=(0,), **more):
    """stdout of a program; Failed with its last words where its status is not one of those wanted."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=max(1, seconds), check=False, env=environment(**more))
    if done.returncode not in wanted:
        with open(work("failures.log"), "a", encoding="utf-8") as file:
            file.write("$ %s\nstatus %d\n%s%s\n" % (" ".join(arguments), done.returncode, done.stdout, done.stderr))
        words = (done.stdout + done.stderr).strip().splitlines()
        raise Failed("%s: status %d: %s" % (os.path.basename(arguments[0]), done.returncode, " / ".join(words[-4:])))
    return done.stdout


def each(function, items):
    """[function(item)], JOBS at once; Failed with the words of all that failed."""
    results, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for item, done in [(item, pool.submit(function, item)) for item in items]:
            try:
                results.append(done.result())
            except Failed as why:
                failures.append("%s: %s" % (item, why))
            except subprocess.TimeoutExpired as late:
                failures.append("%s: not done after %d s" % (item, late.timeout))
    if failures:
        raise Failed("%d of %d: %s" % (len(failures), len(failures) + len(results), "; ".join(failures)))
    return results


def device_missing():
    """Why no GPU can be used; "": one can."""
    listed = json.loads(command([COMMAND, "plugins", "--json"], 60))
    own = [one for one in listed if one.get("id") == "cuda"]
    if not own:
        return "the bundle has no plugin 'cuda'"
    if own[0]["state"] != "open":
        return own[0].get("reason", own[0]["state"]).replace("no device: ", "", 1)
    said = subprocess.run([COMMAND, "profile", "--cluster", "--device", "cuda"], capture_output=True, text=True, timeout=120,
                          check=False, env=environment())
    return "" if said.returncode == 0 else said.stderr.strip()


def work(name):
    os.makedirs(WORK, exist_ok=True)
    return os.path.join(WORK, name)


def kernel_tests():
    """The folder of the kernels' tests; None: the bundle has none."""
    packed = os.path.join(HERE, "tests.tar.xz")
    if not os.path.exists(packed):
        return None
    if not os.path.isdir(work("tests")):
        with tarfile.open(packed) as file:
            file.extractall(WORK)
    return work("tests")


def ceilings(left):
    """What gpu-ceilings measured here: {"bf16_tflops", "copy_read_and_write_gb_per_s", ...}."""
    path = work("ceilings.json")
    if not os.path.exists(path):
        said = command([os.path.join(HERE, "bin", "gpu-ceilings"), "--ceilings", *(["--size", "64"] if SMALL else [])], min(left, 60))
        with open(path, "w", encoding="utf-8") as file:
            file.write(said)
    with open(path, encoding="utf-8") as file:
        return json.load(file)
