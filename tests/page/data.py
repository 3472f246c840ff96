# SPDX-License-Identifier: Apache-2.0
"""The data of a page, read anew: what partition/study/page/page.h says of their form."""
import base64
import json
import re

OPEN, CLOSE = '<script type="application/json" id="data">', "</script>"


def read(path):
    """The whole text, the text of the data, the data."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(OPEN) != 1:
        raise ValueError(f"{text.count(OPEN)} elements of data")
    start = text.index(OPEN) + len(OPEN)
    told = text[start:text.index(CLOSE, start)]
    return text, told, json.loads(told)


def spans(lane, tick):
    """[(kind, stage, replica, slice, part, take, give, micro-batch, start, end)] in the order of their starts."""
    data, at, found, end = base64.b64decode(lane["spans"]), 0, [], 0
    last, length = [-1] * len(lane["classes"]), [0] * len(lane["classes"])

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def zigzag():
        value = varint()
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    for _ in range(lane["n"]):
        number = varint()
        last[number] += 1 + zigzag()
        start = end + zigzag()
        length[number] += zigzag()
        end = start + length[number]
        found.append((*lane["classes"][number], last[number], start * tick, end * tick))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind the last span")
    return found


def ranks(track):
    return [lane for lane in track["lanes"] if lane["peer"] < 0]


def links(track):
    return [lane for lane in track["lanes"] if lane["peer"] >= 0]


def peak(lane, tick):
    """The most that its programs keep, taken at starts and given back at ends, in the order of the list."""
    held = most = 0
    for span in spans(lane, tick):
        held += span[5]
        most = max(most, held)
        held -= span[6]
    return most


def idle_parts(track):
    """All ranks' idle time by cause, copies counted, and all of their time."""
    parts, busy = {}, 0
    for lane in ranks(track):
        busy += lane["busy"] * lane["copies"]
        for name, value in lane["idle"].items():
            parts[name] = parts.get(name, 0) + value * lane["copies"]
    return parts, busy + sum(parts.values())


def style(text):
    """{scheme: {variable: (r, g, b)}} of a page's style."""
    def colours(block):
        return {name: tuple(int(value[i:i + 2], 16) for i in (0, 2, 4)) for name, value in re.findall(r"--([\w-]+): #(\w{6});", block)}

    light = colours(re.search(r":root \{(.*?)\n\}", text, re.S)[1])
    dark = colours(re.search(r':root\[data-theme="dark"\] \{(.*?)\n\}', text, re.S)[1])
    by_system = colours(re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\n  \}', text, re.S)[1])
    return {"light": light, "dark": dark, "dark by the system": by_system}
