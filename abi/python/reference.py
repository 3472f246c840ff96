#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reference.py PACKAGE_DIR: the page of the guide that lists what the package has, from its signatures and docstrings.

python3 abi/python/reference.py build/python > abi/guide/python-reference.md
"""
import dataclasses
import inspect
import re
import sys

HEAD = """# The package onnxpipe

Made by `abi/python/reference.py` from the package itself; [the guide](python.md) says how to use it.
"""


def signature(function):
    text = re.sub(r"onnxpipe\._\w+\.|collections\.abc\.|concurrent\.futures\._base\.", "", str(inspect.signature(function)))
    return text.replace("'", "").replace("self, ", "").replace("(self)", "()").replace("cls, ", "")


def prose(text):
    """A docstring as Markdown: its paragraphs, and lines of a paragraph of its own that explain an argument each as items."""
    paragraphs = []
    for paragraph in re.split(r"\n{2,}", inspect.cleandoc(text or "")):
        lines, items = [], False
        for line in paragraph.splitlines():
            item = re.match(r"([a-z_][a-z_, ]{0,30}): +(\S.*)", line)
            items = items or (not lines and item is not None)
            if items and item:
                lines.append(f"- `{item[1]}`: {item[2]}")
            elif items and line.startswith(" "):
                lines[-1] += " " + line.strip()
            elif items:
                items = False
                lines += ["", line]
            else:
                lines.append(line)
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def members(kind):
    for name, own in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(own, (staticmethod, classmethod)):
            own = own.__func__
        if inspect.isfunction(own) or isinstance(own, property):
            yield name, own


def of_class(name, kind):
    head = name if issubclass(kind, Exception) else name + signature(kind)
    parts = [f"## {name}", f"`{head}`" if head != name else "", prose(kind.__doc__)]
    if issubclass(kind, Exception):
        others = [base.__name__ for base in kind.__mro__[1:] if base.__module__ == "builtins"]
        parts[1] = f"Status {kind.status}; " * bool(kind.status) + f"also {'an' if others[0][0] in 'AEIOU' else 'a'} {others[0]}."
    bases = [kind] + [base for base in kind.__mro__[1:] if base.__module__.startswith("onnxpipe") and base.__name__ in ("Runner", "Handle")]
    seen = set()
    for base in bases if not dataclasses.is_dataclass(kind) and not issubclass(kind, Exception) else [kind]:
        for each, own in members(base):
            if each not in seen and inspect.getdoc(own) and not issubclass(kind, Exception):
                seen.add(each)
                shown = each if isinstance(own, property) else each + signature(own)
                parts.append(f"**`{shown}`**\n\n{prose(inspect.getdoc(own))}")
    return "\n\n".join(part for part in parts if part)


def main():
    sys.path.insert(0, sys.argv[1])
    sys.dont_write_bytecode = True
    import onnxpipe

    kinds = [(name, getattr(onnxpipe, name)) for name in onnxpipe.__all__]
    functions = [(name, own) for name, own in kinds if inspect.isfunction(own)]
    classes = [(name, own) for name, own in kinds if inspect.isclass(own)]
    errors = [(name, own) for name, own in classes if issubclass(own, Exception)]
    print(HEAD)
    for name, own in [pair for pair in classes if pair not in errors] + errors:
        print(of_class(name, own) + "\n")
    for name, own in functions:
        print(f"## {name}\n\n`{name}{signature(own)}`\n\n{prose(own.__doc__)}\n")


if __name__ == "__main__":
    main()
