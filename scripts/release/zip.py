#!/usr/bin/env python3
"""Write a zip archive, of which the same files give the same bytes.

zip.py ARCHIVE EPOCH FILE...: the files are in the archive by their names, with the time EPOCH. The program `gzip`
compresses them: the library of Python is another one on each distribution.
"""

import pathlib
import struct
import subprocess
import sys
import time
import zipfile
import zlib


def deflated(content):
    packed = subprocess.run(["gzip", "--no-name", "--best"], input=content, stdout=subprocess.PIPE, check=True).stdout
    # Around the compressed data are ten bytes in front, and the sum and the size at the end.
    return packed[10:-8]


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    archive, epoch, *files = sys.argv[1:]
    moment = time.gmtime(int(epoch))
    clock = moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2
    day = (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday
    body, directory = b"", b""
    for file in map(pathlib.Path, files):
        content, name = file.read_bytes(), file.name.encode()
        data = deflated(content)
        # Version 2.0 of the format, no flags, "deflate"; then the time, the sum, the sizes, and no extra fields.
        common = struct.pack("<HHHHHIIIHH", 20, 0, 8, clock, day, zlib.crc32(content), len(data), len(content), len(name), 0)
        mode = 0o100755 if file.suffix == ".exe" else 0o100644
        # Made on Unix (3), so that the mode counts there.
        more = struct.pack("<HHHII", 0, 0, 0, mode << 16, len(body))
        directory += b"PK\1\2" + struct.pack("<BB", 20, 3) + common + more + name
        body += b"PK\3\4" + common + name + data
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(directory), len(body), 0)
    pathlib.Path(archive).write_bytes(body + directory + b"PK\5\6" + end)
    with zipfile.ZipFile(archive) as written:
        assert written.testzip() is None, archive
        assert written.namelist() == [pathlib.Path(file).name for file in files], archive


main()
