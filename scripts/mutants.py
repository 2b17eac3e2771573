#!/usr/bin/env python3
"""Puts each planted fault of tests/mutants into a copy of the sources, and runs the tests that have to notice it. Fails
if a fault is not noticed, or no longer fits the sources.

There is a file for each room. In a fault, `find` occurs exactly once in `file`, and `tests` are arguments for
`cargo test --workspace`.

  mutants.py --check      only checks that each fault fits the sources
  mutants.py [WORD ...]   runs all faults, or those whose name or file contains a word
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A test that hangs because of a fault has noticed it.
LIMIT_SECONDS = 900


def misfits(mutants):
    found = []
    for mutant in mutants:
        count = (ROOT / mutant["file"]).read_text().count(mutant["find"])
        if count != 1:
            found.append(f'{mutant["file"]}: {count} times, not once: {mutant["find"]}')
    names = [mutant["name"] for mutant in mutants]
    found += [f"twice: {name}" for name in sorted(set(names)) if names.count(name) > 1]
    return found


def copy_sources(tree):
    """Only what differs is written, so that cargo builds only what differs."""
    listed = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = set(subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")) - {""}
    for old in [path for path in tree.rglob("*") if path.is_file()]:
        if str(old.relative_to(tree)) not in names:
            old.unlink()
    for name in names:
        source, copy = ROOT / name, tree / name
        if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)


def run(tree, target, tests):
    """Returns the exit code (None after the time limit) and the names of the failed tests."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUST_BACKTRACE": "0"}
    command = ["cargo", "test", "--workspace", "--no-fail-fast"]
    build = subprocess.run(
        [*command, *tests[:2 if tests[0] == "--test" else 1], "--no-run"],
        cwd=tree, env=environment, capture_output=True, text=True,
    )
    if build.returncode != 0:
        sys.exit(f"error: it does not build:\n{build.stderr[-3000:]}")
    options = 2 if tests[0] == "--test" else 1
    try:
        done = subprocess.run(
            [*command, *tests[:options], "--", *tests[options:]],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, ["(the time limit)"]
    failed = re.findall(r"^test (\S+) .*\.\.\. FAILED$", done.stdout, re.M) + re.findall(
        r"^---- (\S+) stdout ----$", done.stdout, re.M
    )
    return done.returncode, sorted(set(failed))


def main():
    files = sorted((ROOT / "tests/mutants").glob("*.toml"))
    mutants = [mutant for file in files for mutant in tomllib.loads(file.read_text())["mutant"]]
    wrong = misfits(mutants)
    if wrong:
        sys.exit("error: these faults of tests/mutants no longer fit:\n" + "\n".join(wrong))
    words = sys.argv[1:]
    if words == ["--check"]:
        return
    chosen = [m for m in mutants if not words or any(word in m["name"] + m["file"] for word in words)]
    if not chosen:
        sys.exit(f"error: no fault contains {words}")
    home = Path(os.environ["CARGO_TARGET_DIR"]) / "mutants"
    tree, target = home / "tree", home / "target"
    tree.mkdir(parents=True, exist_ok=True)
    copy_sources(tree)
    survived = 0
    for number, mutant in enumerate(chosen, 1):
        file = tree / mutant["file"]
        original = file.read_text()
        file.write_text(original.replace(mutant["find"], mutant["replace"]))
        try:
            code, failed = run(tree, target, mutant["tests"].split())
        finally:
            file.write_text(original)
        survived += code == 0
        verdict = "SURVIVED" if code == 0 else ", ".join(failed) or "(a crash)"
        print(f'{number:2}/{len(chosen)}  {mutant["name"]} ({mutant["file"]})\n       {verdict}', flush=True)
    if survived:
        sys.exit(f"error: {survived} of {len(chosen)} faults were not noticed")
    print(f"all {len(chosen)} faults were noticed")


main()
