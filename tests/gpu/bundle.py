#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the folder that a machine with a GPU runs (tests/gpu/README.md).

    bundle.py BUILD OUT [--plugin FILE --image FILE]

BUILD: a build tree with the plugin and the programs. --plugin, --image: the CUDA plugin and the module of its kernels where
they are elsewhere, as those of the doubles. A module that is in the plugin is not beside it, too: the manifest says where. At most 20 MiB, for glibc 2.36 and newer, with nothing of the vendor's and no
libstdc++ to be found there.
"""
import argparse
import fnmatch
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
from bundle_kit import KERNEL_TESTS

# Every manylinux system has these: https://peps.python.org/pep-0600/
SYSTEM = r"(linux-vdso|libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so.*"

MOST_BYTES = 20 << 20
PLUGIN = os.path.join("lib", "onnx-pipe", "opipe-backend-cuda.so")
NEWEST_GLIBC = (2, 36)
MODELS = ["encoder", "encoder_decoder", "gpt_8block", "gpt_bf16", "gpt_past", "gpt_raw", "llama_8block", "llama_attention", "llama_fp16"]
OWN = ["gpu.py", "record.py", "bundle_kit.py", "facts.py", "correct.py", "accuracy.py", "train.py", "overlap.py", "infer.py", "gpt2.py", "peer.py",
       "profile_kernels.py"]
EXAMPLES = ["gpu_torch.py", "host_numpy.py"]


class Refused(Exception):
    pass


def needed(path):
    """Libraries that `path` needs, where the loader finds them, without the system's."""
    text = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s+(\S+) => (\S+)", text, flags=re.M)
    return {name: where for name, where in found if not re.fullmatch(SYSTEM, name)}


def copy(source, target):
    """Copies what a link leads to, without debug information."""
    shutil.copyfile(os.path.realpath(source), target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def take(source, target, mode=0o755):
    if not os.path.exists(source):
        raise Refused("%s is not there: build it first" % source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    copy(source, target)
    os.chmod(target, mode)
    return source


def fill(build, out, plugin):
    taken = [take(os.path.join(build, "bin", "onnx-pipe"), os.path.join(out, "bin", "onnx-pipe")),
             take(os.path.join(build, "lib", "libonnxpipe.so"), os.path.join(out, "lib", "libonnxpipe.so.0")),
             take(os.path.join(build, "tests", "gpu-ceilings"), os.path.join(out, "bin", "gpu-ceilings")),
             take(os.path.join(build, "tests", "gpu-host"), os.path.join(out, "bin", "gpu-host")),
             take(os.path.join(build, "tests", "gpu-memory"), os.path.join(out, "bin", "gpu-memory")),
             take(os.path.join(build, "tests", "gpu-latency"), os.path.join(out, "bin", "gpu-latency")),
             take(wheel_conformance(build), os.path.join(out, "bin", "conformance-backend")),
             take(plugin, os.path.join(out, PLUGIN))]
    soname = subprocess.run(["objdump", "-p", taken[1]], check=True, capture_output=True, text=True).stdout
    name = re.search(r"SONAME\s+(\S+)", soname)
    os.rename(os.path.join(out, "lib", "libonnxpipe.so.0"), os.path.join(out, "lib", name[1] if name else "libonnxpipe.so"))
    plugins = os.path.join(build, "lib", "onnx-pipe")
    for one in sorted(os.listdir(plugins)):
        if one.endswith(".so") and one != "opipe-backend-cuda.so":
            taken.append(take(os.path.join(plugins, one), os.path.join(out, "lib", "onnx-pipe", one)))
    kernels = os.path.join(build, "tests", "plugins", "backend-cuda", "kernels")
    for one in sorted(os.listdir(kernels)) if os.path.isdir(kernels) else []:
        if one.startswith("test_") and one != "test_shim" and os.access(os.path.join(kernels, one), os.X_OK):
            taken.append(take(os.path.join(kernels, one), os.path.join(out, "tests", one)))
    others = {}
    for one in taken:
        others.update(needed(one))
    for one, where in sorted(others.items()):
        if not where.startswith(os.path.realpath(build)):
            take(where, os.path.join(out, "lib", one))
    for one in OWN:
        shutil.copyfile(os.path.join(HERE, one), os.path.join(out, one))
    shutil.copyfile(os.path.join(SOURCE, "tests", "data", "attacks", "wire.py"), os.path.join(out, "wire.py"))
    os.makedirs(os.path.join(out, "examples"), exist_ok=True)
    for one in EXAMPLES:
        shutil.copyfile(os.path.join(SOURCE, "tests", "examples", one), os.path.join(out, "examples", one))
    for one in MODELS:
        shutil.copytree(os.path.join(SOURCE, "tests", "data", one), os.path.join(out, "models", one))


def wheel_conformance(build):
    for place in (os.path.join(build, "conformance-backend"), os.path.join(build, "bin", "conformance-backend"),
                  os.path.join(build, "libexec", "onnx-pipe", "conformance-backend")):
        if os.path.exists(place):
            return place
    raise Refused("%s has no conformance-backend: build it first" % build)


def pack_tests(out):
    """The tests of kernels hold the same kernels over and over: together they are as small as one."""
    for name in os.listdir(os.path.join(out, "tests")):
        if not fnmatch.fnmatch(name, KERNEL_TESTS):
            os.remove(os.path.join(out, "tests", name))
    with tarfile.open(os.path.join(out, "tests.tar.xz"), "w:xz") as file:
        file.add(os.path.join(out, "tests"), "tests")
    shutil.rmtree(os.path.join(out, "tests"))


def binaries(out):
    for root, _, names in os.walk(out):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def check_size(out):
    total = sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(out) for name in names)
    if total > MOST_BYTES:
        raise Refused("the bundle has %d bytes, at most %d are wanted" % (total, MOST_BYTES))
    return total


def check_binaries(out):
    for path in binaries(out):
        head = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
        for name in re.findall(r"NEEDED\s+(\S+)", head):
            if re.match(r"lib(stdc\+\+|gcc_s|cuda|cublas|cudnn|nccl|nv)", name):
                raise Refused("%s needs %s" % (path, name))
        text = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
        newest = max([(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", text)], default=(2, 0))
        if newest > NEWEST_GLIBC:
            raise Refused("%s needs glibc %d.%d, %d.%d is the newest allowed" % (path, *newest, *NEWEST_GLIBC))


def place_of(image, plugin):
    """[offset, bytes] of the module in the plugin; None: it is not there."""
    with open(image, "rb") as one, open(plugin, "rb") as other:
        module, whole = one.read(), other.read()
    at = whole.find(module)
    return [at, len(module)] if at >= 0 else None


def manifest(out, image):
    commit = subprocess.run(["git", "-C", SOURCE, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run(["git", "-C", SOURCE, "status", "--porcelain"], capture_output=True, text=True, check=False).stdout.strip()
    files = {}
    for root, _, names in os.walk(out):
        for name in sorted(names):
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, out)] = hashlib.sha256(file.read()).hexdigest()
    with open(os.path.join(out, "manifest.json"), "w", encoding="utf-8") as file:
        json.dump({"commit": (commit or "unknown") + (" and changes" if changed else ""), "files": files, "image": image}, file, indent=1,
                  sort_keys=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("out")
    parser.add_argument("--plugin")
    parser.add_argument("--image")
    given = parser.parse_args()
    plugin = given.plugin or os.path.join(given.build, "lib", "onnx-pipe", "opipe-backend-cuda.so")
    image = given.image or os.path.join(given.build, "cuda", "kernels.fatbin")
    try:
        if not os.path.exists(plugin) or not os.path.exists(image):
            raise Refused("%s has no CUDA plugin: nvcc is needed (./dev deps cuda)" % given.build)
        shutil.rmtree(given.out, ignore_errors=True)
        fill(given.build, given.out, plugin)
        inside = place_of(image, os.path.join(given.out, PLUGIN))
        if inside is None and not given.image:
            raise Refused("%s does not hold the kernels of %s: build it again" % (plugin, image))
        if inside is None:
            shutil.copyfile(image, os.path.join(given.out, "kernels.fatbin"))
        check_binaries(given.out)
        if os.path.isdir(os.path.join(given.out, "tests")):
            pack_tests(given.out)
        manifest(given.out, inside)
        total = check_size(given.out)
    except Refused as why:
        print("bundle: %s" % why, file=sys.stderr)
        return 1
    print("%s: %.1f MiB" % (given.out, total / 1048576))
    return 0


if __name__ == "__main__":
    sys.exit(main())
