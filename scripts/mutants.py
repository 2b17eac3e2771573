#!/usr/bin/env python3
"""Puts each planted fault of tests/mutants into a copy of the sources, and runs the tests that have to notice it. Fails
if a fault is not noticed, or no longer fits the sources.

First the tests that the chosen faults name must pass on the copy as it is: where they fail anyway, they would seem to
notice every fault.

There is a file for each room, with at least three faults. In a fault, `find` occurs exactly once in `file`, which may be
of any language. `tests` are arguments for `cargo test`: "--test <name> <words>" for any package, or "--lib <words>" for the
one that the file belongs to; if there are several in a list, each must notice the fault. Instead of them there may be a
`command`, which is run in the copy.

  mutants.py --check                    only checks that each fault fits the sources
  mutants.py [--shard 0/8] [WORD ...]   runs all faults, or those whose name or file contains a word, or the first eighth
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The rooms of the code, the chart, and the checkers in tests.
ROOMS = "api chart cli config e2e election health lock operator ownership routing simulation telemetry".split()
FEWEST = 3
# A test that hangs because of a fault has noticed it.
LIMIT_SECONDS = 900


def cargo(mutant, tests):
    """The arguments of `cargo test`. Unit tests are those of the fault's own package: no other one is built for them."""
    words = tests.split()
    package = {"lock": "leadergroup-lock", "e2e": "leadergroup-e2e"}.get(mutant["file"].split("/")[0], "leadergroup")
    return ["cargo", *(["-p", package] if words[0] == "--lib" else ["--workspace"]), *words]


def load():
    found = []
    for file in sorted((ROOT / "tests/mutants").glob("*.toml")):
        for mutant in tomllib.loads(file.read_text())["mutant"]:
            tests = mutant.get("tests", [])
            checks = [["command", mutant["command"]]] if "command" in mutant else []
            checks += [cargo(mutant, of) for of in ([tests] if isinstance(tests, str) else tests)]
            found.append({**mutant, "room": file.stem, "checks": checks})
    return found


def stale(mutant):
    """The words for unit tests that are part of neither a module's path nor a function's name."""
    for check in mutant["checks"]:
        if check[1:2] != ["-p"] or check[3] != "--lib":
            continue
        sources = ROOT / {"leadergroup-lock": "lock", "leadergroup-e2e": "e2e"}.get(check[2], "") / "src"
        modules = [path.relative_to(sources).with_suffix("") for path in sources.rglob("*.rs")]
        paths = [f'{"::".join(part for part in module.parts if part != "mod")}::tests::' for module in modules]
        for words in check[4:]:
            is_function = any(f"fn {words}" in path.read_text() for path in sources.rglob("*.rs"))
            if not is_function and not any(words in path for path in paths):
                yield words


def misfits(mutants):
    found = []
    for mutant in mutants:
        count = (ROOT / mutant["file"]).read_text().count(mutant["find"])
        if count != 1:
            found.append(f'{mutant["file"]}: {count} times, not once: {mutant["find"]}')
        if not mutant["checks"]:
            found.append(f'{mutant["name"]}: neither tests nor a command')
        found += [f'{mutant["name"]}: no test has {words} in its name' for words in stale(mutant)]
    names = [mutant["name"] for mutant in mutants]
    found += [f"twice: {name}" for name in sorted(set(names)) if names.count(name) > 1]
    rooms = [mutant["room"] for mutant in mutants]
    found += [f"{room}: {rooms.count(room)} faults, fewer than {FEWEST}" for room in ROOMS if rooms.count(room) < FEWEST]
    found += [f"{room}: no such room" for room in sorted(set(rooms) - set(ROOMS))]
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


def seed(target):
    """The dependencies are those of the usual build."""
    usual = Path(os.environ["CARGO_TARGET_DIR"]) / "debug"
    if not target.exists() and (usual / "deps").exists():
        for part in [".fingerprint", "build", "deps"]:
            shutil.copytree(usual / part, target / "debug" / part, symlinks=True)


def run(command, tree, target, limit=None):
    """Returns the exit code, none after the time limit, and the output. Nothing that it started keeps running. It stays in
    this session, whose share of the CPU time may be small."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUST_BACKTRACE": "0"}
    with subprocess.Popen(
        command, cwd=tree, env=environment, text=True, process_group=0,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def build(command, tree, target):
    """Returns the exit code and the output. The incremental compiler (Rust 1.95) sometimes ends with an internal error
    about its own cache; without the cache it does not."""
    code, output = run(command, tree, target)
    if code != 0 and "internal compiler error" in output:
        shutil.rmtree(target / "debug" / "incremental", ignore_errors=True)
        code, output = run(command, tree, target)
    return code, output


def layer(check):
    """Which kind of test it is."""
    match check:
        case ["command", command]:
            return "chart" if "test-chart" in command else command
        case ["cargo", "--workspace", "--test", name, *_]:
            return {"scenarios": "scenario"}.get(name, name)
        case ["cargo", "-p", package, *_]:
            return "e2e checker" if package == "leadergroup-e2e" else "unit"
    return " ".join(check)


def verdict(check, tree, target):
    """Returns one of "passed", "failed", "by chance", "too long", "does not build" and "no test", and what there is to say
    about it. Tests that fail are run a second time, and must fail again: one that fails now and then is no notice."""
    if check[0] == "command":
        first, command = ["cargo", "build", "--workspace"], ["bash", "-c", check[1]]
    else:
        # What follows "--lib" or "--test <name>" is for the tests.
        ends = check.index("--lib") + 1 if "--lib" in check else check.index("--test") + 2
        options = ["cargo", "test", "--no-fail-fast", *check[1:ends]]
        first, command = [*options, "--no-run"], [*options, "--", *check[ends:]]
    code, output = build(first, tree, target)
    if code != 0:
        return "does not build", output[-3000:]
    code, output = run(command, tree, target, LIMIT_SECONDS)
    if code is None:
        return "too long", f"more than {LIMIT_SECONDS} s"
    if code == 0:
        # The scenarios have a harness of their own.
        none = "none of this name" in output or re.search(r"^test result: ok", output, re.M)
        ran = check[0] == "command" or re.search(r"^test result: ok\. [1-9]", output, re.M) or not none
        return ("passed", "") if ran else ("no test", "has such a name")
    failed = re.findall(r"^test (\S+) .*\.\.\. FAILED$", output, re.M) + re.findall(
        r"^(?:---- (\S+) stdout ----|error: .*)$", output, re.M
    )
    names = sorted(set(failed) - {""})
    # The scenarios take too long for a second time.
    if names and check[0] != "command" and "scenarios" not in check:
        code, _ = run([*command[: command.index("--")], "--", "--exact", *names], tree, target, LIMIT_SECONDS)
        if code == 0:
            return "by chance", ", ".join(names)
    return "failed", ", ".join(names) or output[-500:]


def table(rows):
    """A line for each room: its faults, those that were noticed, and by which kinds of tests."""
    print(f'\n{"room":12}{"faults":>8}{"noticed":>9}  by')
    for room in sorted({row["room"] for row in rows}):
        own = [row for row in rows if row["room"] == room]
        noticed = [row for row in own if row["noticed"]]
        layers = [of for row in noticed for of in row["layers"]]
        by = ", ".join(f"{of} {layers.count(of)}" for of in sorted(set(layers)))
        print(f"{room:12}{len(own):8}{len(noticed):9}  {by}")


def choose(mutants, arguments):
    first, count = 0, 1
    if arguments[:1] == ["--shard"]:
        first, count = (int(number) for number in arguments[1].split("/"))
        arguments = arguments[2:]
    fit = [m for m in mutants if not arguments or any(word in m["name"] + m["file"] for word in arguments)]
    chosen = fit[first::count]
    return chosen or sys.exit(f"error: no fault contains {arguments}")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    mutants = load()
    wrong = misfits(mutants)
    if wrong:
        sys.exit("error: these faults of tests/mutants do not fit:\n" + "\n".join(wrong))
    if sys.argv[1:] == ["--check"]:
        return
    chosen = choose(mutants, sys.argv[1:])
    home = Path(os.environ["CARGO_TARGET_DIR"]) / "mutants"
    tree, target = home / "tree", home / "target"
    tree.mkdir(parents=True, exist_ok=True)
    copy_sources(tree)
    seed(target)
    for check in sorted({tuple(check) for mutant in chosen for check in mutant["checks"]}):
        said, what = verdict(list(check), tree, target)
        print(f'without a fault  {" ".join(check[1:])}: {said}', flush=True)
        if said != "passed":
            sys.exit(f"error: these tests would notice every fault, or none: {what}")
    for number, mutant in enumerate(chosen, 1):
        print(f'{number:2}/{len(chosen)}  {mutant["name"]} ({mutant["file"]})', flush=True)
        file = tree / mutant["file"]
        original = file.read_text()
        faulty = original.replace(mutant["find"], mutant["replace"])
        file.write_text(faulty)
        mutant["layers"] = []
        try:
            for check in mutant["checks"]:
                said, what = verdict(check, tree, target)
                if said == "too long":
                    # Unless the machine is so busy that it takes too long without the fault, too.
                    file.write_text(original)
                    without, _ = verdict(check, tree, target)
                    file.write_text(faulty)
                    said = said if without == "passed" else f"without the fault {without}, with it too long"
                print(f'       {layer(check)}: {"SURVIVED" if said == "passed" else said} {what}', flush=True)
                mutant["layers"] += [layer(check)] if said == "failed" else ["time-out"] if said == "too long" else []
        finally:
            file.write_text(original)
        mutant["noticed"] = len(mutant["layers"]) == len(mutant["checks"])
    table(chosen)
    missed = [mutant["name"] for mutant in chosen if not mutant["noticed"]]
    if missed:
        sys.exit(f"error: {len(missed)} of {len(chosen)} faults were not noticed:\n" + "\n".join(missed))


main()
