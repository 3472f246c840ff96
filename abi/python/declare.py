#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""declare.py CDEF OUT: the declarations of opipe/cdef.h as a module of Python's, which is imported in no time. (Reading cdef.h takes
cffi the better part of a second; the package does that where the module is not there.)"""
import sys

import cffi


def main():
    declarations = cffi.FFI()
    with open(sys.argv[1], encoding="utf-8") as file:
        declarations.cdef(file.read())
    declarations.set_source("onnxpipe._declared", None)
    declarations.emit_python_code(sys.argv[2])


if __name__ == "__main__":
    main()
