# SPDX-License-Identifier: Apache-2.0
"""The control statements of C source: a parser of as much of C as lint has to know of them. Its source comes from tree.code(): comments
and the contents of literals blanked."""
import re

CONTROL = ("if", "else", "for", "while", "switch", "do")
TOKEN = re.compile(r"[A-Za-z_]\w*|\"[^\"]*\"|'[^']*'|\+\+|--|->|[^\s\w]|\d[\w.]*")
OPENING = frozenset("({[")
CLOSING = frozenset(")}]")
HEAD = re.compile(r"([A-Za-z_]\w*) \([^;{}]*\)(?: __attribute__.*)?$")


class Token:
    """index: among the tokens of its file. partner: of a bracket, the index of the other one; None if there is none."""
    __slots__ = ("text", "line", "column", "index", "partner")

    def __init__(self, text, line, column, index):
        self.text, self.line, self.column, self.index, self.partner = text, line, column, index, None


class Control:
    """One if, else, loop or switch.
    word: as in CONTROL, or the macro that stands for a loop. level: how many control statements of its function it is in, itself
    counted; an else has its if's, and so has an if right behind an else.
    head: (first, last token) of the word and what is in its parentheses. body: (first, last token), braces included. braced: whether
    the body has any. chain: a number that the parts of one if-else chain share."""
    __slots__ = ("function", "word", "level", "head", "body", "braced", "chain")

    def __init__(self, function, word, level, head, chain):
        self.function, self.word, self.level, self.head, self.chain = function, word, level, head, chain
        self.body, self.braced = None, False


def balance(lines):
    """Opening less closing braces."""
    return sum(line.count("{") - line.count("}") for line in lines)


def without_directives(source, macros):
    """The source with preprocessor lines blanked. If the first branch of an #if opens a brace and does not close it, only that branch
    is kept. macros: bodies of macros that take several lines are kept, as code of the place where they stand."""
    kept = []
    hidden = []  # of every #if around: where its branch begins, and whether this one is blanked
    lines = source.split("\n")
    at = 0
    while at < len(lines):
        directive = re.match(r"\s*#\s*(\w+)", lines[at])
        end = at
        while directive and lines[end].endswith("\\") and end + 1 < len(lines):
            end += 1
        word = directive.group(1) if directive else ""
        if word in ("if", "ifdef", "ifndef"):
            hidden.append([at, False])
        elif word in ("else", "elif") and hidden:
            hidden[-1] = [at, hidden[-1][1] or balance(kept[hidden[-1][0]:]) != 0]
        elif word == "endif" and hidden:
            hidden.pop()
        body = [line.rstrip("\\") for line in lines[at + 1:end + 1]]
        blanked = any(h for _, h in hidden)
        if not directive:
            kept.append("" if blanked else lines[at])
        elif macros and word == "define" and not blanked and balance(body) == 0:
            kept += [""] + body
        else:
            kept += [""] * (end + 1 - at)
        at = end + 1
    return kept


def tokens(lines):
    """line: from 1. column: from 0."""
    found = []
    opened = []
    for number, line in enumerate(lines, 1):
        for match in TOKEN.finditer(line):
            text = match.group(0)
            token = Token(text, number, match.start(), len(found))
            found.append(token)
            if text in OPENING:
                opened.append(token)
            elif text in CLOSING and opened:
                opened.pop().partner = token.index
    return found


class Function:
    """One function definition: first and last are the tokens of its body's braces, found the control statements inside, simples the
    others, each (index of its first token, index behind its last)."""

    def __init__(self, name, all_tokens, at):
        self.name, self.tokens, self.at = name, all_tokens, at
        self.first, self.last = all_tokens[at], all_tokens[self.closing(at)]
        self.found = []
        self.simples = []
        self.n_chains = 0

    def text(self):
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def closing(self, at):
        """Index of the partner of the bracket at `at`, of the last token if it has none; `at` if there is no bracket."""
        token = self.tokens[at]
        if token.text not in OPENING:
            return at
        return len(self.tokens) - 1 if token.partner is None else token.partner

    def block(self, level):
        """Statements in braces; stands behind them after it."""
        end = self.closing(self.at)
        self.at += 1
        while self.at < end:
            self.statement(level)
        self.at = end + 1

    def control(self, level, chain):
        first = self.at
        word = self.text()
        self.at += 1
        if self.text() == "(" and word not in ("do", "else"):
            self.at = self.closing(self.at) + 1
        found = Control(self.name, word, level, (self.tokens[first], self.tokens[self.at - 1]), chain)
        self.found.append(found)
        found.braced = self.text() == "{"
        begin = self.at
        self.statement(level)
        found.body = (self.tokens[begin], self.tokens[self.at - 1])

    def statement(self, level):
        """One statement, of which `level` control statements are around."""
        text = self.text()
        if text == "{":
            self.block(level)
        elif text == "if":
            self.branch(level + 1)
        elif text in ("for", "while", "switch", "do"):
            self.control(level + 1, None)
            if text == "do":
                self.simple()  # its while
        elif self.loop_macro():
            self.control(level + 1, None)
        elif text == "case" or text == "default":
            while self.text() not in (":", ""):
                self.at += 1
            self.at += 1
        elif re.match(r"[A-Za-z_]", text) and self.at + 1 < len(self.tokens) and self.tokens[self.at + 1].text == ":":
            self.at += 2  # a label
        else:
            self.simple()

    def loop_macro(self):
        """Whether a name stands here with parentheses and a block behind it, as HASH_ITER(...) {."""
        if not re.match(r"(?!(?:return|sizeof)$)[A-Za-z_]\w*$", self.text()) or self.tokens[self.at + 1].text != "(":
            return False
        end = self.closing(self.at + 1) + 1
        return end < len(self.tokens) and self.tokens[end].text == "{"

    def branch(self, level):
        chain = self.n_chains
        self.n_chains += 1
        self.control(level, chain)
        while self.text() == "else":
            if self.tokens[self.at + 1].text == "if":
                self.at += 1
            self.control(level, chain)

    def simple(self):
        """Up to the semicolon; braces on the way are initialisers."""
        begin = self.at
        while self.at < len(self.tokens):
            text = self.text()
            if text == "}":
                return
            if text in ("(", "{", "["):
                self.at = self.closing(self.at)
            self.at += 1
            if text == ";":
                self.simples.append((begin, self.at))
                return


def functions(source, macros=True):
    """A Function, parsed, for every function definition of the source; those that macros make only with `macros`."""
    all_tokens = tokens(without_directives(source, macros))
    at, begin = 0, 0
    while at < len(all_tokens):
        text = all_tokens[at].text
        if text == "{":
            head = " ".join(t.text for t in all_tokens[begin:at])
            match = HEAD.search(head)
            if not re.search(r'\bextern "[^"]*"$|\bnamespace\b[ \w]*$', head):
                function = Function(match.group(1) if match else None, all_tokens, at)
                if match and "=" not in head and match.group(1) not in (*CONTROL, "sizeof"):
                    function.block(0)
                    yield function
                at = function.closing(at)
        if text in ("{", "}", ";"):
            begin = at + 1
        at += 1
