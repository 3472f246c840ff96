# SPDX-License-Identifier: Apache-2.0
"""Models whose weights lie in another file, and the tricks that have been played with that.

Every folder holds what its name says; `secret.bin`, beside the folders, is what must not be read.
"""
import os
import stat

from wire import FLOAT, W_DATA, adds, outside

SHAPE = [2, 4]


def refer(**entries):
    return adds(outside("weight0", FLOAT, SHAPE, **entries))


def good(folder, put):
    put("w.bin", W_DATA)
    return refer(location="w.bin", offset="0", length="32")


def bad_number(key, text):
    def make(folder, put):
        put("w.bin", W_DATA * 4)
        entries = {"location": "w.bin", "offset": "0", "length": "32", key: text}
        return refer(**entries)

    return make


def place(location):
    def make(folder, put):
        put("w.bin", W_DATA)
        return refer(location=location, length="32")

    return make


def absolute(folder, put):
    return refer(location=os.path.abspath(os.path.join(folder, "..", "secret.bin")))


def inner_parent(folder, put):
    os.mkdir(os.path.join(folder, "a"))
    return refer(location="a/../../secret.bin")


def link(target):
    def make(folder, put):
        put("inside.bin", W_DATA)
        os.symlink(target, os.path.join(folder, "w.bin"))
        return refer(location="w.bin")

    return make


def link_parent(folder, put):
    os.symlink("..", os.path.join(folder, "sub"))
    return refer(location="sub/secret.bin")


def hard_link(folder, put):
    os.link(os.path.join(folder, "..", "secret.bin"), os.path.join(folder, "w.bin"))
    return refer(location="w.bin")


def fifo(folder, put):
    os.mkfifo(os.path.join(folder, "w.bin"))
    return refer(location="w.bin")


def directory(folder, put):
    os.mkdir(os.path.join(folder, "w.bin"))
    return refer(location="w.bin")


def device(folder, put):
    """Needs the right to make device files; without it a link to the system's own stands in."""
    path = os.path.join(folder, "w.bin")
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        os.symlink("/dev/zero", path)
    return refer(location="w.bin")


def short_file(folder, put):
    put("w.bin", W_DATA[:-1])
    return refer(location="w.bin")


def no_location(folder, put):
    return refer(offset="0", length="32")


def unknown_keys(folder, put):
    put("w.bin", b"skip" + W_DATA)
    return refer(
        location="w.bin", offset="4", length="32", checksum="0" * 40, dims="9", __class__="x"
    )


def twice(folder, put):
    put("w.bin", W_DATA)
    pairs = adds(outside("weight0", FLOAT, SHAPE, location="w.bin", locatiom="../secret.bin"))
    return pairs.replace(b"locatiom", b"location")


def also_raw(folder, put):
    put("w.bin", W_DATA)
    return adds(outside("weight0", FLOAT, SHAPE, location="w.bin") + b"\x4a\x20" + W_DATA)


def cache(data_folder):
    """The layout of a model cache: the model and its data are links to blobs in another folder."""

    def make(folder, put):
        blobs = os.path.join("..", ".blobs", os.path.basename(folder))
        put(os.path.join(blobs, "one", "model"), refer(location="model.onnx.data"))
        put(os.path.join(blobs, data_folder, "data"), W_DATA)
        os.symlink(os.path.join(blobs, "one", "model"), os.path.join(folder, "model.onnx"))
        os.symlink(
            os.path.join(blobs, data_folder, "data"), os.path.join(folder, "model.onnx.data")
        )

    return make


# name: (maker, expectation). See make.py for the words.
ATTACKS = {
    "ext_good": (good, "runs"),
    "ext_unknown_keys": (unknown_keys, "runs"),
    "ext_no_length": (place("w.bin"), "runs"),
    "ext_parent": (place("../secret.bin"), "load ../secret.bin"),
    "ext_inner_parent": (inner_parent, "load a/../../secret.bin"),
    "ext_absolute": (absolute, "load secret.bin"),
    "ext_empty": (place(""), "load weight0"),
    "ext_dot": (place("."), "load weight0"),
    "ext_backslash": (place("..\\secret.bin"), "load secret.bin"),
    "ext_nul": (place("w.bin\0.txt"), "load weight0"),
    "ext_missing_file": (place("none.bin"), "load none.bin"),
    "ext_missing_folder": (place("none/w.bin"), "load none/w.bin"),
    "ext_file_as_folder": (place("w.bin/x"), "load w.bin/x"),
    "ext_no_location": (no_location, "load location"),
    "ext_two_locations": (twice, "load location"),
    "ext_also_raw": (also_raw, "load weight0"),
    "ext_link_out": (link("../secret.bin"), "load w.bin"),
    "ext_link_inside": (link("inside.bin"), "load w.bin"),
    "ext_link_loop": (link("w.bin"), "load w.bin"),
    "ext_link_parent": (link_parent, "load sub/secret.bin"),
    "ext_hard_link": (hard_link, "load w.bin"),
    "ext_fifo": (fifo, "load w.bin"),
    "ext_directory": (directory, "load w.bin"),
    "ext_device": (device, "load w.bin"),
    "ext_short_file": (short_file, "load w.bin"),
    "ext_offset_past_end": (bad_number("offset", "128"), "load weight0"),
    "ext_offset_overflow": (bad_number("offset", "9223372036854775800"), "load weight0"),
    "ext_offset_wraps": (bad_number("offset", "18446744073709551615"), "load weight0"),
    "ext_offset_negative": (bad_number("offset", "-4"), "load weight0"),
    "ext_offset_long": (bad_number("offset", "1" * 40), "load weight0"),
    "ext_offset_hex": (bad_number("offset", "0x10"), "load weight0"),
    "ext_offset_text": (bad_number("offset", "4 "), "load weight0"),
    "ext_offset_empty": (bad_number("offset", ""), "load weight0"),
    "ext_length_huge": (bad_number("length", str(1 << 62)), "load weight0"),
    "ext_length_negative": (bad_number("length", "-32"), "load weight0"),
    "ext_length_zero": (bad_number("length", "0"), "any"),
    "ext_length_other": (bad_number("length", "28"), "load weight0"),
    "ext_length_too_long": (bad_number("length", "64"), "load weight0"),
    "ext_cache": (cache("one"), "runs"),
    "ext_cache_elsewhere": (cache("other"), "load model.onnx.data"),
}
