#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel onnxruntime-ep-onnx-pipe of an installed tree.

    wheel.py STAGE OUT_DIR

It holds the adapter, libonnxpipe.so, the plugins, and the libraries that these need beyond the
system's, all found beside one another ($ORIGIN). It neither holds nor requires onnxruntime. The tag
says which glibc it was built for. Equal trees give equal bytes.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTER = os.path.join(HERE, "..", "..", "plugins", "host-onnxruntime")
PACKAGE = "onnxruntime_ep_onnx_pipe"
# What every manylinux system has: https://peps.python.org/pep-0600/
SYSTEM = r"(linux-vdso|libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so.*"


def needed(path):
    """Libraries that `path` needs, where the loader finds them, the system's left out."""
    text = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s+(\S+) => (\S+)", text, flags=re.M)
    return {name: where for name, where in found if not re.fullmatch(SYSTEM, name)}


def copy(source, target):
    shutil.copyfile(os.path.realpath(source), target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def fill(stage, folder):
    lib = os.path.join(stage, "lib")
    os.makedirs(os.path.join(folder, "onnx-pipe"))
    shutil.copyfile(os.path.join(ADAPTER, "python", "__init__.py"), os.path.join(folder, "__init__.py"))
    copies = {"libopipe-ort-ep.so": "libopipe-ort-ep.so", "libonnxpipe.so": "libonnxpipe.so"}
    for name in sorted(os.listdir(os.path.join(lib, "onnx-pipe"))):
        if name.endswith(".so"):
            copies["onnx-pipe/" + name] = "onnx-pipe/" + name
    others = {}
    for source, target in copies.items():
        copy(os.path.join(lib, source), os.path.join(folder, target))
        others.update(needed(os.path.join(lib, source)))
    for name, where in sorted(others.items()):
        if not where.startswith(os.path.realpath(stage)):
            copy(where, os.path.join(folder, name))


def glibc(folder):
    """The newest version of glibc that anything here needs."""
    newest = (2, 17)
    for root, _, names in os.walk(folder):
        for name in names:
            if ".so" not in name:
                continue
            command = ["objdump", "-T", os.path.join(root, name)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", text):
                newest = max(newest, (int(major), int(minor)))
    return newest


def version():
    header = os.path.join(HERE, "..", "..", "abi", "include", "opipe", "abi.h")
    with open(header, encoding="utf-8") as file:
        return re.search(r'#define OPIPE_VERSION "([^"]+)"', file.read())[1]


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d\n" % (name, digest, len(data))


def write(folder, out):
    own = version()
    tag = "py3-none-manylinux_%d_%d_x86_64" % glibc(folder)
    info = "%s-%s.dist-info" % (PACKAGE, own)
    with open(os.path.join(HERE, "..", "..", "LICENSE"), "rb") as file:
        licence = file.read()
    files = {
        info + "/METADATA": (
            "Metadata-Version: 2.1\nName: onnxruntime-ep-onnx-pipe\nVersion: %s\n"
            "Summary: onnx-pipe as an execution provider of ONNX Runtime\n"
            "License: Apache-2.0\nRequires-Python: >=3.8\n" % own
        ).encode(),
        info + "/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: onnx-pipe\nRoot-Is-Purelib: false\nTag: %s\n" % tag
        ).encode(),
        info + "/LICENSE": licence,
    }
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                files[PACKAGE + "/" + os.path.relpath(path, folder)] = file.read()
    names = sorted(files)
    files[info + "/RECORD"] = (
        "".join(record(name, files[name]) for name in names) + info + "/RECORD,,\n"
    ).encode()
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "%s-%s-%s.whl" % (PACKAGE, own, tag))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in names + [info + "/RECORD"]:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100755 << 16 if ".so" in name else 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[name])
    return path


def main():
    stage, out = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        fill(stage, os.path.join(folder, PACKAGE))
        print(write(os.path.join(folder, PACKAGE), out))


if __name__ == "__main__":
    main()
