#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""opipe/cdef.h, which the build makes from the headers: a C compiler takes it as it is, and its structs and numbers are those of
opipe/host.h; cffi takes it, lays it out alike, and runs a model by it. Skipped, after the first, where there is no cffi."""
import os
import re
import subprocess
import sys
import tempfile

SOURCE, BUILD = os.environ["OPIPE_SOURCE_DIR"], os.environ["OPIPE_BUILD_DIR"]
CDEF = os.path.join(BUILD, "generated", "opipe", "cdef.h")
COMPILER = os.environ.get("OPIPE_CC") or "cc"
MODEL = os.path.join(SOURCE, "tests", "data", "demo", "model.onnx")


def names_of(text):
    """Structs that are whole, and numbers."""
    structs = re.findall(r"\n\} (\w+);", text)
    numbers = re.findall(r"\b(OPIPE_[A-Z0-9_]+)\b(?= ?=| ?,|\n\}| \})", "".join(re.findall(r"enum \{.*?\};", text, flags=re.S)))
    return structs, numbers + re.findall(r"#define (\w+) ", text)


def run(command, **how):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50, **how)


def by_the_compiler(text, folder):
    """{name: size or number} by the public headers, and whether the text compiles too. It has nothing that only they have."""
    structs, numbers = names_of(text)
    if len(structs) < 40 or len(numbers) < 150:
        raise SystemExit(f"FAILED: {CDEF} has {len(structs)} structs and {len(numbers)} numbers")
    program = os.path.join(folder, "numbers")
    lines = [f'printf("{name} %lld\\n", (long long)sizeof({name}));' for name in structs]
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in numbers]
    found = []
    for before in ("#include <opipe/host.h>", f'#include <stddef.h>\n#include <stdint.h>\n#include "{CDEF}"'):
        with open(program + ".c", "w", encoding="utf-8") as file:
            file.write(f"{before}\n#include <stdio.h>\nint main(void) {{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        command = [COMPILER, "-std=c11", "-w", "-I" + os.path.join(SOURCE, "abi", "include"), program + ".c", "-o", program]
        made = run(command)
        if made.returncode != 0:
            raise SystemExit(f"FAILED: {' '.join(command)}\n{made.stderr[:2000]}")
        found.append(dict((name, int(number)) for name, number in (line.split() for line in run([program]).stdout.splitlines())))
    if found[0] != found[1]:
        raise SystemExit(f"FAILED: cdef.h differs from host.h: {sorted(set(found[0].items()) ^ set(found[1].items()))[:10]}")
    return found[0]


def main():
    with open(CDEF, encoding="utf-8") as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        wanted = by_the_compiler(text, folder)
    print(f"{len(wanted)} structs and numbers as the headers have them")
    try:
        import cffi
    except ImportError:
        print("SKIP: cffi is not installed: only a C compiler has seen cdef.h")
        return 77
    ffi = cffi.FFI()
    ffi.cdef(text)
    library = os.path.join(BUILD, "lib", "libonnxpipe.so")
    lib = ffi.dlopen(library) if not os.environ.get("OPIPE_SANITIZE") else None
    for name, number in wanted.items():
        own = ffi.sizeof(name) if name.startswith("opipe_") else number if lib is None else getattr(lib, name)
        if own != number:
            raise SystemExit(f"FAILED: {name} is {own} by cffi, {number} by the compiler")
    if lib is None:
        print("SKIP: Python does not open a library built with a sanitizer")
        return 77
    example = os.path.join(SOURCE, "tests", "examples", "host_cffi.py")
    result = run([sys.executable, "-B", example, CDEF, library, MODEL, "3"])
    if result.returncode != 0 or "3 stages, output 0 of shape [1, 8, 256]" not in result.stdout:
        raise SystemExit(f"FAILED: host_cffi.py: {result.stdout}{result.stderr}")
    print(result.stdout.strip())
    result = run([sys.executable, "-B", example, CDEF, library, "/no/such/model.onnx"])
    if "Failed" not in result.stderr or "/no/such/model.onnx" not in result.stderr:
        raise SystemExit(f"FAILED: a missing model: {result.stdout}{result.stderr}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
