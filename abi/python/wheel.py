#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes wheels of an installed component "python" (abi/cmake/python.cmake).

    wheel.py [--here] STAGE OUT_DIR

onnxpipe holds the package, libonnxpipe.so, the plugins, the command and the adapter for ONNX Runtime; they need nothing but glibc, and
the tag says which. onnxruntime-ep-onnx-pipe is the name under which users of ONNX Runtime find the adapter: it requires onnxpipe and
holds only a path. onnxruntime is neither held nor required by either. Equal trees give equal bytes. --here accepts any build; the wheel then needs the
libraries of this machine, and its tag says so.
"""

import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
# Libraries that every manylinux system has: https://peps.python.org/pep-0600/
SYSTEM = r"(linux-vdso|libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so.*"
# Packages that are linked in, or compiled in from headers.
BUNDLED = ("libjansson-dev", "libprotobuf-c-dev", "libxxhash-dev")


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def is_binary(name):
    return ".so" in os.path.basename(name) or name.startswith("onnxpipe/bin/")


def stripped(path):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["strip", "--strip-unneeded", "-o", out.name, path], check=True)
        return read(out.name)


def package(stage, here):
    """{name in the wheel: bytes} of the installed package. A wheel has no links: here, the library is in it under each of its names."""
    files = {}
    for folder, _, names in os.walk(stage):
        for name in names:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, stage)
            if name.endswith(".pyc") or (not here and (name.endswith(".so.1") or os.path.islink(path))):
                raise SystemExit(f"wheel.py: {inside} does not belong into a wheel")
            if here and re.search(r"\.so\.\d+\.", name):
                continue
            files[inside] = stripped(path) if is_binary(inside) and not here else read(path)
    return files


def checked(stage, files):
    """The newest glibc that a binary needs. Raises where one needs another library, or shows symbols that are not its own."""
    newest = (2, 17)
    for inside in filter(is_binary, files):
        text = subprocess.run(["objdump", "-p", "-T", os.path.join(stage, inside)], check=True, capture_output=True, text=True).stdout
        for name in re.findall(r"NEEDED\s+(\S+)", text):
            if not re.fullmatch(SYSTEM, name) and "onnxpipe/" + name not in files:
                raise SystemExit(f"wheel.py: {inside} needs {name}")
        shown = re.findall(r"^[0-9a-f]+ g.*\s(\S+)$", text, flags=re.M)
        others = [name for name in shown if name.startswith(("json", "protobuf", "XXH"))]
        if others:
            raise SystemExit(f"wheel.py: {inside} shows {', '.join(others[:5])}")
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", text):
            newest = max(newest, (int(major), int(minor)))
    return newest


def version():
    return re.search(r'#define OPIPE_VERSION "([^"]+)"', read(ROOT, "abi", "include", "opipe", "abi.h").decode())[1]


def project():
    """Summary, requirements and extras of pyproject.toml, without tomllib, which needs Python 3.11."""
    text = read(ROOT, "pyproject.toml").decode()

    def listed(line):
        return re.findall(r'"([^"]+)"', line)

    lines = ["Summary: " + re.search(r'^description = "(.*)"$', text, flags=re.M)[1]]
    lines.append("Requires-Python: " + re.search(r'^requires-python = "(.*)"$', text, flags=re.M)[1])
    lines += ["Requires-Dist: " + each for each in listed(re.search(r"^dependencies = (.*)$", text, flags=re.M)[1])]
    extras = re.search(r"^\[project.optional-dependencies\]\n((?:.+\n)+)", text, flags=re.M)[1]
    for line in extras.splitlines():
        name, what = line.split(" = ", 1)
        lines.append("Provides-Extra: " + name)
        lines += [f'Requires-Dist: {each}; extra == "{name}"' for each in listed(what)]
    return "\n".join(lines) + "\n"


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d\n" % (name, digest, len(data))


def write(name, tag, metadata, files, out):
    """A wheel of these files, with what describes it."""
    own = version()
    stem = "%s-%s" % (name.replace("-", "_"), own)
    info = stem + ".dist-info/"
    licences = {info + "licenses/LICENSE": read(ROOT, "LICENSE")}
    if "manylinux" in tag:
        licences.update({f"{info}licenses/{package}": read("/usr/share/doc", package, "copyright") for package in BUNDLED})
    described = {
        info + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {own}\nLicense: Apache-2.0\n{metadata}".encode(),
        info + "WHEEL": (
            "Wheel-Version: 1.0\nGenerator: onnx-pipe\nRoot-Is-Purelib: %s\nTag: %s\n" % (str(tag.endswith("any")).lower(), tag)
        ).encode(),
    }
    if name == "onnxpipe":
        described[info + "entry_points.txt"] = b"[console_scripts]\nonnx-pipe = onnxpipe.__main__:main\n"
    files = {**files, **licences, **described}
    names = sorted(files)
    files[info + "RECORD"] = ("".join(record(each, files[each]) for each in names) + info + "RECORD,,\n").encode()
    path = os.path.join(out, f"{stem}-{tag}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for each in names + [info + "RECORD"]:
            entry = zipfile.ZipInfo(each, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if is_binary(each) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[each])
    print(path)


def main():
    here = sys.argv[1] == "--here"
    stage, out = sys.argv[1 + here : 3 + here]
    os.makedirs(out, exist_ok=True)
    for old in glob.glob(os.path.join(out, "*.whl")):
        os.remove(old)
    files = package(stage, here)
    for needed in ("onnxpipe/libonnxpipe.so", "onnxpipe/cdef.h", "onnxpipe/libopipe-ort-ep.so", "onnxpipe/bin/onnx-pipe"):
        if needed not in files:
            raise SystemExit(f"wheel.py: {stage} has no {needed}")
    tag = "linux_%s" % os.uname().machine if here else "manylinux_%d_%d_x86_64" % checked(stage, files)
    write("onnxpipe", "py3-none-" + tag, project(), files, out)
    adapter = read(ROOT, "plugins", "host-onnxruntime", "python", "__init__.py")
    metadata = "Summary: onnx-pipe as an execution provider of ONNX Runtime\nRequires-Python: >=3.9\nRequires-Dist: onnxpipe==%s\n"
    write("onnxruntime-ep-onnx-pipe", "py3-none-any", metadata % version(), {"onnxruntime_ep_onnx_pipe/__init__.py": adapter}, out)


if __name__ == "__main__":
    main()
