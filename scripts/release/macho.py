#!/usr/bin/env python3
"""Print the libraries that a program for macOS needs; fail if it is not signed, which macOS demands on arm64.

macho.py FILE: the format is in <mach-o/loader.h>.
"""

import pathlib
import struct
import sys

MAGIC_64 = 0xFEEDFACF
ARM64 = 0x0100000C
CODE_SIGNATURE = 0x1D
# LC_LOAD_DYLIB, and the weak, reexported, lazy and upward kinds of it.
LIBRARIES = {0xC, 0x80000018, 0x8000001F, 0x20, 0x80000023}


def commands(content):
    magic, machine, _, _, count, _ = struct.unpack_from("<6I", content)
    if magic != MAGIC_64:
        sys.exit("error: this is no program for macOS")
    offset = 32
    for _ in range(count):
        kind, size = struct.unpack_from("<2I", content, offset)
        yield machine, kind, content[offset : offset + size]
        offset += size


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    signed, machine = False, None
    for machine, kind, command in commands(pathlib.Path(sys.argv[1]).read_bytes()):
        signed |= kind == CODE_SIGNATURE
        if kind in LIBRARIES:
            (name,) = struct.unpack_from("<I", command, 8)
            print(command[name:].split(b"\0")[0].decode())
    if machine == ARM64 and not signed:
        sys.exit("error: the program is not signed")


main()
