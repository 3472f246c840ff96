# SPDX-License-Identifier: Apache-2.0
"""The lists behind the layout fingerprints, made from the public headers.

    python3 tests/abi/freeze.py            writes abi/include/opipe/frozen/*.h anew
    python3 tests/abi/freeze.py --check    says which of them would change
    python3 tests/abi/freeze.py --freeze   the same, and freezes today's minor: tests/abi/vX.Y, the
                                           baseline of abidiff, numbers in the static assertions

A struct's list holds the fields that it had in the first minor that was released with it: they are
read from tests/abi/vX.Y, or, as long as no minor has it, from the headers as they are. Until a minor
is released it may be frozen again.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.environ.get(
    "OPIPE_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)
HEADERS = [
    "abi",
    "types",
    "backend",
    "schedule",
    "transport",
    "train",
    "state",
    "models",
    "build",
    "simulate",
    "planning",
    "requests",
    "team",
    "generate",
    "host",
]
UNSETTLED = {"opipe_details", "opipe_host_pages", "opipe_schedule_cells"}  # of interfaces whose id ends in "/0"
INCLUDE = os.path.join(ROOT, "abi", "include")
RELEASED = os.path.join(ROOT, "tests", "abi")


def structs_of(folder, header):
    """[(struct, [field, ...])] in the header's order."""
    path = os.path.join(folder, "opipe", header + ".h")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
    found = []
    for match in re.finditer(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, flags=re.S):
        body = re.sub(r"^\s*#.*$", "", match[2], flags=re.M)
        if match[1] not in UNSETTLED:
            found.append((match[1], [name for part in split(body) for name in names_of(part)]))
    return found


def needs_of(header):
    """{struct: {name: the target minor below which the header has it not}}, for fields and the struct itself."""
    with open(os.path.join(INCLUDE, "opipe", header + ".h"), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
    needs, guards, struct, inside = {}, [], None, {}
    for line in text.splitlines():
        begins = re.match(r"typedef struct (\w+) \{", line)
        target = re.match(r"#if OPIPE_TARGET_MINOR >= (\d+)", line)
        if begins:
            struct, inside = begins[1], {}
            needs[struct] = {struct: max(guards + [0])}
        if target or re.match(r"#\s*if", line):
            guards.append(int(target[1]) if target else 0)
        elif re.match(r"#\s*endif", line):
            guards.pop()
        elif struct is not None and guards and not begins and not line.startswith("}"):
            inside[max(guards)] = inside.get(max(guards), "") + line + "\n"
        if struct is not None and line.startswith("} %s;" % struct):
            for minor, part in inside.items():
                needs[struct].update({name: minor for piece in split(part) for name in names_of(piece)})
            struct = None
    return needs


def guard_of(needs, struct, fields):
    """The target minor that the struct and its listed fields need."""
    return max(needs[struct].get(name, 0) for name in [struct] + fields)


def split(body):
    """The declarations of a struct; those of function pointers hold no other semicolon."""
    return [" ".join(part.split()) for part in body.split(";") if part.strip()]


def names_of(declaration):
    pointer = re.search(r"\(\*(\w+)\)\s*\(", declaration)
    if pointer:
        return [pointer[1]]
    return [
        re.search(r"(\w+)\s*(?:\[[^\]]*\])*$", part.strip())[1] for part in declaration.split(",")
    ]


def minors():
    found = [re.fullmatch(r"v(\d+)\.(\d+)", name) for name in os.listdir(RELEASED)]
    return sorted((int(m[1]), int(m[2])) for m in found if m)


def today():
    with open(os.path.join(INCLUDE, "opipe", "abi.h"), encoding="utf-8") as file:
        text = file.read()
    return tuple(
        int(re.search(r"#define OPIPE_ABI_%s (\d+)" % part, text)[1]) for part in ("MAJOR", "MINOR")
    )


def released_as(folder):
    """{struct: fields} of a released minor, whichever header it stood in; of what it listed: an interface that was settled
    later was no promise then."""
    listed = set()
    for path in glob.glob(os.path.join(folder, "opipe", "frozen", "*.h")):
        with open(path, encoding="utf-8") as file:
            listed |= set(re.findall(r"OPIPE_ROW\((\w+),", file.read()))
    return {name: fields for header in HEADERS for name, fields in structs_of(folder, header) if name in listed}


def wanted(anew=False):
    """{header: [(struct, minor, fields)]}; anew: today's minor as its headers are now."""
    lists = {}
    versions = [version for version in reversed(minors()) if not (anew and version == today())]
    released = [(version[1], released_as(os.path.join(RELEASED, "v%d.%d" % version))) for version in versions]
    for header in HEADERS:
        rows = []
        for struct, fields in structs_of(INCLUDE, header):
            minor = today()[1]
            for of_minor, structs in released:
                if struct in structs:
                    minor, fields = of_minor, structs[struct]
            rows.append((struct, minor, fields))
        lists[header] = rows
    return lists


def numbers(lists):
    """{struct: (bytes, hash)} as the compiler sees them."""
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "numbers.c")
        with open(source, "w", encoding="utf-8") as file:
            for header in HEADERS:
                file.write("#include <opipe/%s.h>\n" % header)
            file.write("#include <stdio.h>\nint main(void) {\n")
            for header in HEADERS:
                for struct, _, fields in lists[header]:
                    file.write(
                        '  printf("%s %%zu %%016llx\\n", OPIPE_END(%s, %s), '
                        "(unsigned long long)OPIPE_HASH(%s));\n"
                        % (struct, struct, fields[-1], struct)
                    )
            file.write("  return 0;\n}\n")
        program = os.path.join(work, "numbers")
        compiler = os.environ.get("OPIPE_CC", "cc")
        command = [compiler, "-std=c11", "-w", "-DOPIPE_UNFROZEN", "-I" + INCLUDE, source]
        subprocess.run(command + ["-o", program], check=True)
        out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {row.split()[0]: row.split()[1:] for row in out.splitlines()}


def text_of(header, rows, frozen):
    upper = header.upper()
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Made by tests/abi/freeze.py: the structs of %s.h as they were first released. */" % header,
        "#ifndef OPIPE_FROZEN_%s_H" % upper,
        "#define OPIPE_FROZEN_%s_H" % upper,
        "",
        "/* clang-format off */",
    ]
    needs = needs_of(header)
    guards = {struct: guard_of(needs, struct, fields) for struct, _, fields in rows}
    for struct, minor, fields in rows:
        if guards[struct]:
            lines.append("#if OPIPE_TARGET_MINOR >= %d" % guards[struct])
        lines.append("#define OPIPE_FIELDS_%s(X, T) \\" % struct)
        part = "  "
        for field in fields:
            word = "X(T, %s) " % field
            if len(part) + len(word) > 96:
                lines.append(part + "\\")
                part = "  "
            part += word
        lines.append(part.rstrip())
        lines.append("OPIPE_ORDER(%s)" % struct)
        if struct in frozen:
            size, value = frozen[struct]
            lines.append("OPIPE_FREEZE(%s, %s, %s, 0x%s)" % (struct, fields[-1], size, value))
        if guards[struct]:
            lines.append("#endif")
    text = {struct: "OPIPE_ROW(%s, %s, %d)" % (struct, fields[-1], minor) for struct, minor, fields in rows}
    later = sorted({minor for minor in guards.values() if minor})
    for minor in later:
        name = "OPIPE_ROWS_%s_%d" % (upper, minor)
        lines += ["#if OPIPE_TARGET_MINOR >= %d" % minor, "#define %s \\" % name]
        lines += ["  , %s \\" % text[struct] for struct in text if guards[struct] == minor]
        lines[-1] = lines[-1][: -len(" \\")]
        lines += ["#else", "#define %s" % name, "#endif"]
    first = ["  %s, \\" % text[struct] for struct in text if not guards[struct]]
    further = "".join(" OPIPE_ROWS_%s_%d" % (upper, minor) for minor in later)
    if first:
        lines += ["#define OPIPE_ROWS_%s \\" % upper] + first
        lines[-1] = lines[-1][: -len(", \\")] + further
    else:  # each of the others begins with a comma
        lines.append("#define OPIPE_ROWS_%s%s" % (upper, further))
    lines += ["/* clang-format on */", "", "#endif /* OPIPE_FROZEN_%s_H */" % upper, ""]
    return "\n".join(lines)


def write_all(lists, frozen):
    for header in HEADERS:
        path = os.path.join(INCLUDE, "opipe", "frozen", header + ".h")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text_of(header, lists[header], frozen))


def frozen_now(lists):
    """Numbers of the structs of released minors: those alone may not change."""
    released = {
        struct
        for version in minors()
        for struct in released_as(os.path.join(RELEASED, "v%d.%d" % version))
    }
    if not released:
        return {}
    every = numbers(lists)
    return {struct: every[struct] for struct in released}


def check(lists):
    status = 0
    for header in HEADERS:
        path = os.path.join(INCLUDE, "opipe", "frozen", header + ".h")
        with open(path, encoding="utf-8") as file:
            if file.read() != text_of(header, lists[header], frozen_now(lists)):
                print("%s is not what tests/abi/freeze.py makes of %s.h: run it" % (path, header))
                status = 1
    return status


def freeze(lists):
    target = os.path.join(RELEASED, "v%d.%d" % today())
    write_all(lists, {})
    write_all(lists, numbers(lists))
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(os.path.join(INCLUDE, "opipe"), os.path.join(target, "opipe"))
    with open(os.path.join(target, "README.md"), "w", encoding="utf-8") as file:
        file.write(
            "# %s\n\nThe public headers of ABI %d.%d, frozen: never edited. Tests build old plugins "
            "and hosts from them.\n" % ((os.path.basename(target),) + today())
        )
    script = os.path.join(RELEASED, "test_abidiff.sh")
    subprocess.run(["sh", script, "--write"], check=True)
    print("froze %s" % target)


def main():
    lists = wanted("--freeze" in sys.argv)
    if "--check" in sys.argv:
        return check(lists)
    if "--freeze" in sys.argv:
        freeze(lists)
        return 0
    write_all(lists, {})
    write_all(lists, frozen_now(lists))
    return 0


if __name__ == "__main__":
    sys.exit(main())
