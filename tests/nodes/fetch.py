#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the backend test data of onnx 1.22.0 below a folder of the build.

The data is part of the package's wheel; one fixed wheel is asked for whatever Python runs
here (nothing of it is executed), and it must have the known hash. Where the package index
cannot be reached, --archive FILE takes the same data from a tar.xz of the release.
Does nothing when the data is there already.

usage: fetch.py OUT_DIR [--archive FILE]      the data is then at OUT_DIR/onnx-1.22.0
Exit status: 0 there, 3 cannot be had (with the reason on stderr).
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

VERSION = "1.22.0"
SHA256 = "1d0a2bdb15eb2b3cb65c438f3423d9620d14fdce32f92380e6bb1b2e09568ef5"
PLATFORM = [
    "--only-binary=:all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.11",
    "--platform",
    "manylinux_2_28_x86_64",
]
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TESTS = {"node": 1765, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35}


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


def from_wheel(folder, scratch):
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *PLATFORM,
        "-d",
        scratch,
        f"onnx=={VERSION}",
    ]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    wheels = [name for name in os.listdir(scratch) if name.endswith(".whl")]
    if done.returncode != 0 or len(wheels) != 1:
        raise OSError(f"pip could not download the wheel of onnx {VERSION}")
    wheel = os.path.join(scratch, wheels[0])
    with open(wheel, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != SHA256:
        raise OSError(f"{wheels[0]}: SHA-256 is {found}, expected {SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = wanted(item.filename)
            if path and not item.is_dir():
                with archive.open(item) as source:
                    write(folder, path, source)


def from_archive(folder, file):
    with tarfile.open(file, "r:xz") as archive:
        for item in archive:
            path = wanted(item.name)
            if path and item.isfile():
                write(folder, path, archive.extractfile(item))


def check(folder):
    for kind, count in TESTS.items():
        found = len(os.listdir(os.path.join(folder, kind)))
        if found != count:
            raise OSError(f"{kind}: {found} tests unpacked, expected {count}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out_dir")
    parser.add_argument("--archive", help="tar.xz of the release's backend test data")
    args = parser.parse_args()
    final = os.path.join(args.out_dir, f"onnx-{VERSION}")
    if os.path.isdir(final):
        return 0
    os.makedirs(args.out_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out_dir) as scratch:
        folder = os.path.join(scratch, "data")
        os.mkdir(folder)
        try:
            try:
                from_wheel(folder, scratch)
            except OSError as reason:
                if not args.archive or not os.path.isfile(args.archive):
                    raise
                print(f"fetch.py: {reason}; taking {args.archive}", file=sys.stderr)
                from_archive(folder, args.archive)
            check(folder)
            os.rename(folder, final)
        except OSError as reason:
            print(f"fetch.py: {reason}", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
