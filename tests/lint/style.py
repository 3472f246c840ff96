#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules that clang-format 14 cannot check: braces and increments.

A body has braces if it, or that of another branch of its if-else chain, takes more than one line or is empty; else it has none. A switch
and a do always have them. Counting up or down is written ++i.

style.py --fix PATH...   writes these files, or those below these folders, so; clang-format -i has to follow. Bodies of macros are left."""
import re
import sys
from collections import defaultdict

from lib import blocks, tree

ALWAYS = ("switch", "do")


def takes_more(control, all_tokens):
    """Whether its body takes more lines than one, or none, or is a macro without a semicolon."""
    first, last = control.body
    if control.braced:
        return last.line - first.line != 2 or all_tokens[last.index - 1].text != ";"
    return first.text == ";" or last.line - control.head[1].line > 1


def wrong_braces(function, all_tokens):
    """The controls whose braces must come or go."""
    chains = defaultdict(list)
    for number, control in enumerate(function.found):
        chains[-1 - number if control.chain is None else control.chain].append(control)
    for parts in chains.values():
        wanted = any(c.word in ALWAYS or takes_more(c, all_tokens) for c in parts)
        for control in parts:
            if control.braced != wanted:
                yield control


def segments(all_tokens, begin, end):
    """[begin, end) cut at the commas outside brackets."""
    depth = 0
    for at in range(begin, end):
        text = all_tokens[at].text
        depth += (text in "([{") - (text in ")]}")
        if text == "," and depth == 0:
            yield begin, at
            begin = at + 1
    yield begin, end


def steps(function, all_tokens):
    """Ranges of tokens whose value nobody uses: statements, and the last parts of the heads of for."""
    for begin, end in function.simples:
        yield begin, end - 1
    for control in function.found:
        if control.word != "for":
            continue
        begin, end = control.head[0].index + 2, control.head[1].index
        semicolons = [at for at in range(begin, end) if all_tokens[at].text == ";"]
        if len(semicolons) == 2:
            yield semicolons[1] + 1, end


def late_steps(function, all_tokens):
    """(first token, token of the operator) of every x++ and x-- whose value nobody uses."""
    for whole in steps(function, all_tokens):
        for begin, end in segments(all_tokens, *whole):
            if end - begin < 2 or all_tokens[end - 1].text not in ("++", "--"):
                continue
            left = " ".join(t.text for t in all_tokens[begin:end - 1])
            if re.match(r"(\( \* [A-Za-z_]\w* \)|(?!return\b)[A-Za-z_]\w*( (\.|->) \w+| \[ .* \])*)$", left) and "=" not in left:
                yield all_tokens[begin], all_tokens[end - 1]


def findings(source):
    """(line, message, name of the function, edits) of every finding; edits: (line from 0, column, length, text)."""
    for function in blocks.functions(tree.code(source), macros=False):
        all_tokens = function.tokens
        for control in wrong_braces(function, all_tokens):
            first, last = control.body
            line = control.head[0].line
            if control.braced:
                edits = [(first.line - 1, first.column, 1, ""), (last.line - 1, last.column, 1, "")]
                yield line, f"the body of {control.word} takes one line and has braces", function.name, edits
            else:
                behind = control.head[1]
                edits = [(behind.line - 1, behind.column + len(behind.text), 0, " {"), (last.line - 1, None, 0, "\n}")]
                yield line, f"the body of {control.word}, or of its else, takes more lines and has no braces", function.name, edits
        for first, operator in late_steps(function, all_tokens):
            edits = [(operator.line - 1, operator.column, 2, ""), (first.line - 1, first.column, 0, operator.text)]
            if first.text == "(":  # (*x)++ is ++*x
                edits += [(first.line - 1, first.column, 1, ""), (operator.line - 1, operator.column - 1, 1, "")]
            yield first.line, f"x{operator.text} whose value nobody uses is written {operator.text}x", function.name, edits


def fix(path):
    source = tree.text(path)
    lines = source.split("\n")
    edits = [edit for *_, found in findings(source) for edit in found]
    for line, column, length, text in sorted(edits, key=lambda e: (e[0], 10000 if e[1] is None else e[1], e[2]), reverse=True):
        column = len(lines[line]) if column is None else column
        lines[line] = lines[line][:column] + text + lines[line][column + length:]
        if length == 1 and not lines[line].strip():
            lines[line] = None
    if edits:
        with open(f"{tree.ROOT}/{path}", "w", encoding="utf-8") as file:
            file.write("\n".join(line for line in lines if line is not None))


def main():
    if sys.argv[1:2] == ["--fix"]:
        for path in tree.files(tree.C_ENDINGS):
            if any(path == p or path.startswith(p.rstrip("/") + "/") for p in sys.argv[2:]):
                fix(path)
        return
    report = tree.Report("style")
    for path in tree.files(tree.C_ENDINGS):
        for line, message, name, _ in findings(tree.text(path)):
            report.add(path, line, message, name)
    report.end()


if __name__ == "__main__":
    main()
