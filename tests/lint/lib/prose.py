# SPDX-License-Identifier: Apache-2.0
"""Sentences of comments, pages and messages that do not begin with their subject."""
import re

from lib import tree

C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*)', re.S)
MESSAGE = re.compile(r'("(?:\\.|[^"\\\n])*"(?:\s*(?:PRI\w+\s*)?"(?:\\.|[^"\\\n])*")*)')
HASH = re.compile(r'^[ \t]*#(?!!)[^\n]*(?:\n[ \t]*#[^\n]*)*|"""(.*?)"""', re.M | re.S)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[^\n]*", re.M)
FENCE = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.M | re.S)
END = re.compile(r"[.?!](?:[)\"'*]*)(?:\s+|$)|\n[ \t]*\n|\|")

PRONOUN = r"(?:it|they|them|this|these|that|those|which|one|there|none|each|all|both|any|an?|the|its|every)\b"
OPENINGS = [
    re.compile(r"(?:what|those|that which)\b(?! (?:if|about)\b)", re.I),
    re.compile(r"Of\b"),
    re.compile(r"(?:Is|Are|Was|Were|Has|Have|Does|Do|Can|Must|Shall|Did|Had) " + PRONOUN),
    re.compile(r"(?:Is|Are|Has|Have) (?:it|they|there)\b", re.I),
    re.compile(r"(?:Only (?:then|here|there|so|with)|So (?:many|much|few|long|often|are|is|do|does|has|have)|Nor|Neither) \w+"),
    re.compile(r"(?:Here|There|Behind|Before|Beside|Below|Above|Under|In|On|To|From|With|Within|Between|By|For) (?:(?:it|them|this|these|those|which|each|all) )?"
               r"(?:stands?|lies?|comes?|goes|belongs?|begins?|ends?)\b"),
    re.compile(r"(?:Whose|Whom)\b"),
]
ASKED = 2  # from here to the next one an opening is right in a question
ASKED_END = 4


def sentences(text):
    """(offset, sentence) of each, cut at ends of sentences, cells and paragraphs."""
    begin = 0
    for match in END.finditer(text):
        yield begin, text[begin:match.end()]
        begin = match.end()
    yield begin, text[begin:]


def is_wrong(sentence):
    """Whether it opens as English does not. Two words alone head a column."""
    words = re.sub(r"^[\s*#/\"'`(>|-]+|\d+\. +", "", sentence)
    if words.count(" ") < 2:
        return False
    question = words.rstrip(" \"*)\n").endswith("?")
    return any(opening.match(words) and not (question and ASKED <= kind < ASKED_END) for kind, opening in enumerate(OPENINGS))


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def indent(match):
    """A line's mark, as a new line and blanks of the same length."""
    return "\n" + " " * (len(match.group(0)) - 1)


def texts(path, source):
    """(offset, text) of every comment, message and paragraph of a file."""
    if path.endswith(tree.C_ENDINGS):
        for match in C_COMMENT.finditer(source):
            if match.group(1):
                yield match.start(), re.sub(r"\n[ \t]*(?:\*(?!/)|//)?", indent, match.group(1).replace("*/", "  "))
        bare = C_COMMENT.sub(lambda m: blank(m.group(0)) if m.group(1) else m.group(0), source)
        for match in MESSAGE.finditer(INCLUDE.sub(lambda m: blank(m.group(0)), bare)):
            if " " in match.group(1):
                yield match.start(), match.group(1)
    elif path.endswith(".md"):
        bare = FENCE.sub(lambda m: blank(m.group(0)), source)
        yield 0, re.sub(r"^[ \t]*(?:[*-]|\d+\.) ", lambda m: "\n\n" + " " * max(0, len(m.group(0)) - 2), bare, flags=re.M)
    else:
        for match in HASH.finditer(source):
            yield match.start(), re.sub(r"\n[ \t]*#?", indent, match.group(1) or match.group(0))


def wrong(path, source):
    """(line, sentence) of every one that opens wrongly."""
    for offset, text in texts(path, source):
        for at, sentence in sentences(text):
            if is_wrong(sentence):
                skipped = len(sentence) - len(sentence.lstrip())
                yield source.count("\n", 0, min(len(source), offset + at + skipped)) + 1, " ".join(sentence.split())[:100]
