#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""reference.py COMMAND: the page of the guide that lists the command's options and the schedules', from its manual pages.

python3 abi/cli/reference.py build/bin/onnx-pipe > abi/guide/command-reference.md
"""
import re
import subprocess
import sys

HEAD = """# The command onnx-pipe

Made by `abi/cli/reference.py` from the command itself, as its manual pages are: `man onnx-pipe-run` has the same text. A unique beginning
stands for an option."""


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain(text):
    """Text of a manual page without its escapes."""
    text = re.sub(r"\\f[BIR]|\\&", "", text)
    return text.replace("\\-", "-").replace("\\e", "\\")


def cell(text):
    """Text within a table: as code where Markdown would read signs of it otherwise."""
    text = text.replace("|", "\\|")
    return re.sub(r"[^\s(]*[*_<>\[\]]\S*[^\s,;:.)]", lambda word: f"`{word[0]}`", text)


def of_manual(text):
    """{section: lines} of a manual page."""
    sections, lines = {}, []
    for line in text.splitlines():
        if line.startswith(".SH "):
            lines = sections.setdefault(line[4:], [])
        else:
            lines.append(line)
    return sections


def tags(lines):
    """(heading, tag, text) of each .TP, in order; .SS begins a heading."""
    heading = None
    for at, line in enumerate(lines):
        if line.startswith(".SS "):
            heading = plain(line[4:])
        elif line == ".TP":
            text = []
            for following in lines[at + 2 :]:
                if following.startswith((".TP", ".SS")):
                    break
                text.append(plain(following))
            yield heading, plain(re.sub(r"^\.BR? ", "", lines[at + 1])), " ".join(text)


def of_command(command, name):
    sections = of_manual(said(command, "manual", name))
    yield f"\n## {name}\n"
    what = plain(sections["NAME"][0]).partition(" - ")[2]
    yield f"{what[0].upper()}{what[1:]}.\n"
    synopsis = plain("\n".join(line[3:] if line.startswith(".B ") else line for line in sections["SYNOPSIS"] if line not in (".nf", ".fi")))
    lines = re.sub("^usage: ", "", synopsis).strip().splitlines()
    yield "```text\n" + ("\n".join(lines) if "" in lines else " ".join(lines)) + "\n```"
    last = None
    for heading, tag, text in tags(sections["OPTIONS"]):
        if heading != last:
            yield f"\n**{heading}**\n\n| option | |\n|---|---|"
        last = heading
        tag = tag.replace("|", "\\|")
        yield f"| `{tag}` | {cell(text)} |"


def of_schedules(command):
    yield "\n## Schedules\n\n`--schedule NAME:key=value,...`, as `onnx-pipe schedule list` prints them.\n\n| schedule | option | |\n|---|---|---|"
    for line in said(command, "schedule", "list").splitlines():
        option = re.match(r"    ([a-z_]+)=(\S+)  (.*)", line)
        name = re.match(r"(\S+) +(.*)", line)
        if option:
            yield f"| | `{option[1]}`{'' if option[2] == '...' else ': ' + cell(option[2])} | {cell(option[3])} |"
        elif name:
            yield f"| `{name[1]}` | | {cell(name[2])} |"


def main():
    command = sys.argv[1]
    print(HEAD)
    overall = of_manual(said(command, "manual"))
    names = [tag.split()[0][len("onnx-pipe-") :] for _, tag, _ in tags(overall["COMMANDS"])]
    for name in names:
        print("\n".join(of_command(command, name)))
    print("\n".join(of_schedules(command)))
    print("\n## Exit status\n\n| status | |\n|---|---|")
    for _, tag, text in tags(overall["EXIT STATUS"]):
        print(f"| {tag} | {text} |")


if __name__ == "__main__":
    main()
