#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the backend test data of onnx 1.23.2 below a folder of the build.

The package's wheel holds the data of simple/ and pytorch-*/; that of node/ is written by the
cases in the package, which are run once with the NumPy below (their random numbers are seeded).
The package is the one that this Python has, else one that pip installs into a scratch folder.
Where it cannot be had, --archive FILE takes the data of 1.22.0 from a tar.xz of that release,
which lacks later tests; none that both have was corrected.
Does nothing when the data is there already.

usage: fetch.py OUT_DIR [--archive FILE]      prints the data's folder, OUT_DIR/onnx-VERSION
Exit status: 0 there, 3 cannot be had (with the reason on stderr).
"""
import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

VERSION = "1.23.2"
NUMPY = "2.2.6"
OLD_VERSION = "1.22.0"  # of the archive
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TESTS = {
    VERSION: {"node": 1884, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35},
    OLD_VERSION: {"node": 1765, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35},
}
# Runs where the package can be imported.
WRITE = """
import argparse, os, shutil, sys, warnings
warnings.simplefilter("ignore")
import onnx, onnx.backend.test.case.node as node, onnx.backend.test.cmd_tools as tools
if onnx.__version__ != sys.argv[2]:
    raise ImportError("onnx " + onnx.__version__)
cases = node.collect_testcases(None)
tools.model_test.collect_testcases = lambda: cases
tools.generate_data(argparse.Namespace(output=sys.argv[1]))
for kind in sys.argv[3:]:
    shutil.copytree(os.path.join(tools.DATA_DIR, kind), os.path.join(sys.argv[1], kind))
"""


def wanted(name):
    """The path below OUT_DIR/onnx-VERSION of an archive member, or None."""
    parts = name.split("/")
    start = next((i for i, part in enumerate(parts) if part in KINDS), None)
    if start is None or not name.endswith((".onnx", ".pb")):
        return None
    rest = parts[start:]
    return None if len(rest) < 3 or ".." in rest or "" in rest else os.path.join(*rest)


def write(folder, path, source):
    target = os.path.join(folder, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as out:
        shutil.copyfileobj(source, out)


def write_cases(folder, where):
    """True when the package of this version could be imported, from folder `where` if there is one."""
    env = dict(os.environ, **({"PYTHONPATH": where} if where else {}))
    command = [sys.executable, "-B", "-c", WRITE, folder, VERSION, *KINDS[1:]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(folder)
        os.mkdir(folder)
        if where:
            raise OSError(f"the cases of onnx {VERSION} cannot be written: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def from_package(folder, scratch):
    if write_cases(folder, None):
        return
    where = os.path.join(scratch, "packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--target", where]
    done = subprocess.run(
        [*command, f"onnx=={VERSION}", f"numpy=={NUMPY}"], stdout=sys.stderr, check=False)  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"pip could not install onnx {VERSION}")
    write_cases(folder, where)


def from_archive(folder, file):
    with tarfile.open(file, "r:xz") as archive:
        for item in archive:
            path = wanted(item.name)
            if path and item.isfile():
                write(folder, path, archive.extractfile(item))


def check(folder, version):
    for kind, count in TESTS[version].items():
        found = len(os.listdir(os.path.join(folder, kind)))
        if found != count:
            raise OSError(f"{kind}: {found} tests, expected {count}")


def fill(out_dir, version, take):
    """Makes OUT_DIR/onnx-VERSION whole, or not at all."""
    with tempfile.TemporaryDirectory(dir=out_dir) as scratch:
        folder = os.path.join(scratch, "data")
        os.mkdir(folder)
        take(folder, scratch)
        check(folder, version)
        os.rename(folder, os.path.join(out_dir, f"onnx-{version}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out_dir")
    parser.add_argument("--archive", help=f"tar.xz of the backend test data of {OLD_VERSION}")
    args = parser.parse_args()
    final, old = (os.path.join(args.out_dir, f"onnx-{version}") for version in (VERSION, OLD_VERSION))
    os.makedirs(args.out_dir, exist_ok=True)
    if not os.path.isdir(final):
        try:
            fill(args.out_dir, VERSION, from_package)
        except OSError as reason:
            print(f"fetch.py: {reason}", file=sys.stderr)
    if os.path.isdir(final):
        print(final)
        return 0
    try:
        if not os.path.isdir(old):
            if not args.archive or not os.path.isfile(args.archive):
                return 3
            print(f"fetch.py: taking {args.archive}", file=sys.stderr)
            fill(args.out_dir, OLD_VERSION, lambda folder, _: from_archive(folder, args.archive))
    except OSError as reason:
        print(f"fetch.py: {reason}", file=sys.stderr)
        return 3
    print(old)
    return 0


if __name__ == "__main__":
    sys.exit(main())
