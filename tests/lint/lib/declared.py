# SPDX-License-Identifier: Apache-2.0
"""Types that C source defines: structs with their fields, names, and the prefixes of enums. Source comes from tree.code()."""
import functools
import os
import re

BODY = re.compile(r"\b(struct|union|enum)\b(?:\s+__attribute__\s*\(\(.*?\)\))?\s*(\w+)?\s*\{")
TYPEDEF = re.compile(r"\btypedef\b")
MARK = re.compile(r"[](){}[;,]")
BRACE = re.compile(r"[{}]")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)


class Struct:
    """name: its tag, or what typedef calls it. n_fields: members, those of structs inside counted one by one. n_functions: those that are
    pointers to functions."""

    def __init__(self, kind, name, line, body):
        self.kind, self.name, self.line = kind, name, line
        self.n_fields, self.n_functions = count(body)


@functools.lru_cache(maxsize=None)
def plain(source):
    """Without preprocessor lines; every line keeps its number."""
    return DIRECTIVE.sub(lambda m: "\n" * m.group(0).count("\n"), source)


def closing(source, at):
    """Index behind the bracket that closes the one at `at`."""
    depth = 0
    for match in BRACE.finditer(source, at):
        depth += 1 if match.group(0) == "{" else -1
        if depth == 0:
            return match.end()
    return len(source)


def pieces(text, separator):
    """text cut at separators outside of all brackets."""
    depth, begin, found = 0, 0, []
    for match in MARK.finditer(text):
        char = match.group(0)
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            found.append(text[begin:match.start()])
            begin = match.end()
    found.append(text[begin:])
    return [p for p in found if p.strip()]


def count(body):
    """(members, those that are pointers to functions) of the text between a struct's braces."""
    members, functions = 0, 0
    for member in pieces(body, ";"):
        inside = BODY.search(member)
        if inside and inside.group(1) != "enum":
            end = closing(member, inside.end() - 1)
            more, more_functions = count(member[inside.end():end - 1])
            members += more
            functions += more_functions
            continue
        for declarator in pieces(member, ","):
            members += 1
            functions += bool(re.search(r"\(\s*\*\s*(?:const\s+)?\w+\s*(?:\[\w*\])?\s*\)\s*\(", declarator))
    return members, functions


@functools.lru_cache(maxsize=None)
def bodies(source):
    """[(kind, name or None, line, text between the braces)] of all structs, unions and enums that stand on their own."""
    source, found = plain(source), []
    end = 0
    for match in BODY.finditer(source):
        if match.start() < end:
            continue  # within the one before
        end = closing(source, match.end() - 1)
        name = match.group(2)
        if name is None and source[max(0, match.start() - 20):match.start()].rstrip().endswith("typedef"):
            after = re.match(r"\s*(\w+)\s*;", source[end:])
            name = after.group(1) if after else None
        found.append((match.group(1), name, source.count("\n", 0, match.start()) + 1, source[match.end():end - 1]))
    return found


def structs(source):
    for kind, name, line, body in bodies(source):
        if kind != "enum":
            yield Struct(kind, name, line, body)


def names(source):
    """(name, line) of every type that is defined; a forward declaration defines none."""
    found = [(name, line) for _, name, line, _ in bodies(source) if name]
    source = plain(source)
    known = {name for name, _ in found}
    for match in TYPEDEF.finditer(source):
        text = pieces(source[match.end():match.end() + 8000], ";")[0]
        text = re.sub(r"\{.*\}", "{}", text, flags=re.S)
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", text)
        last = re.search(r"(\w+)\s*(?:\[\w*\])?\s*$", text)
        name = pointer.group(1) if pointer else last.group(1) if last else None
        same = re.match(r"\s*(?:struct|union|enum)\s+(\w+)\s+(\w+)\s*$", text)
        if name and name not in known and not (same and same.group(1) == same.group(2)):
            found.append((name, source.count("\n", 0, match.start()) + 1))
    return found


def prefixes(source):
    """(prefix, line) of every enum of several constants that share one of at least two words, as OPI_FATE_."""
    for kind, _, line, body in bodies(source):
        constants = [m.group(1) for m in (re.match(r"\s*([A-Z]\w*)", piece) for piece in pieces(body, ",")) if m] if kind == "enum" else []
        if len(constants) > 1:
            shared = os.path.commonprefix(constants)
            shared = shared[:shared.rfind("_") + 1]
            if shared.count("_") > 1:
                yield shared, line
