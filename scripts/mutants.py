#!/usr/bin/env python3
"""Puts each planted fault of tests/mutants into a copy of the sources, and runs the tests that have to notice it. Fails
at the end if a fault was not noticed, or no longer fits the sources; the others run nevertheless.

First the tests that the chosen faults name must pass on the copy as it is: where they fail anyway, they would seem to
notice every fault, and those faults are not planted.

There is a file for each room, with at least three faults. In a fault, `find` occurs exactly once in `file`, which may be
of any language. `tests` are arguments for `cargo test`: "--test <name> <words>" for any package, or "--lib <words>" for the
one that the file belongs to; if there are several in a list, each must notice the fault. Instead of them there may be a
`command`, which is run in the copy.

  mutants.py --check                    only checks that each fault fits the sources
  mutants.py --record                   only shows what the runs of earlier days have noticed
  mutants.py [--shard 0/8] [WORD ...]   runs all faults, or those whose name or file contains a word, or the first eighth

Each fault that ran adds a line to mutants/record.jsonl in the target directory: the fault, the commit, the result, the
kinds of tests that noticed it, and how long that took. So the shards of several nights add up.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The rooms of the code, the chart, and the checkers in tests.
ROOMS = (
    "agent api chart cli config e2e election health hooks lock memory operator ownership plugin routing "
    "simulated_cluster simulation status telemetry"
).split()
FEWEST = 3
# A test that hangs because of a fault has noticed it.
LIMIT_SECONDS = 900


def cargo(mutant, tests):
    """The arguments of `cargo test`. Unit tests are those of the fault's own package: no other one is built for them."""
    words = tests.split()
    folder = mutant["file"].split("/")[0]
    package = f"leadergroup-{folder}" if folder in ("agent", "lock", "e2e") else "leadergroup"
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


@functools.cache
def unit_tests(package):
    """The sources of a package, and the paths of its modules as tests have them."""
    sources = ROOT / package.removeprefix("leadergroup").removeprefix("-") / "src"
    files = list(sources.rglob("*.rs"))
    modules = [file.relative_to(sources).with_suffix("").parts for file in files]
    paths = [f'{"::".join(part for part in module if part != "mod")}::tests::' for module in modules]
    return [file.read_text() for file in files], paths


def stale(mutant):
    """The words for unit tests that are part of neither a module's path nor a function's name."""
    for check in mutant["checks"]:
        if check[1:2] != ["-p"] or check[3] != "--lib":
            continue
        texts, paths = unit_tests(check[2])
        for words in check[4:]:
            if not any(words in path for path in paths) and not any(f"fn {words}" in text for text in texts):
                yield words


def misfits_of(mutant, tree=ROOT):
    """Why one fault cannot be planted."""
    file = tree / mutant["file"]
    count = file.read_text().count(mutant["find"]) if file.is_file() else 0
    if count != 1:
        yield f'{mutant["file"]}: {count} times, not once: {mutant["find"]}'
    if not mutant["checks"]:
        yield f'{mutant["name"]}: neither tests nor a command'
    yield from (f'{mutant["name"]}: no test has {words} in its name' for words in stale(mutant))


def misfits(mutants):
    found = [problem for mutant in mutants for problem in misfits_of(mutant)]
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
    # It is enough that a run of the simulated cluster fails: it is not made shorter.
    quick = {"RUST_BACKTRACE": "0", "LEADERGROUP_CLUSTER_REPLAYS": "0"}
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), **quick}
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


def record():
    return Path(os.environ["CARGO_TARGET_DIR"]) / "mutants/record.jsonl"


def content(mutant):
    """Tells a fault from one of the same name that was changed since."""
    parts = [mutant["file"], mutant["find"], mutant["replace"], *(" ".join(check) for check in mutant["checks"])]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def commit():
    git = ["git", "-C", ROOT]
    asked = [["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"]]
    head, changes = (subprocess.run([*git, *of], check=True, capture_output=True, text=True).stdout for of in asked)
    return head.strip() + ("+changes" if changes else "")


def note(mutant, of_commit, began):
    entry = {
        "name": mutant["name"], "room": mutant["room"], "fault": content(mutant), "commit": of_commit,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "result": mutant["result"], "by": mutant["layers"],
        "seconds": round(time.monotonic() - began),
    }
    with record().open("a") as file:
        file.write("\n" + json.dumps(entry))


def show_record(mutants, in_full):
    """The last result of each fault, by commits. What ran before a fault was changed does not count."""
    # A run that is killed may leave an incomplete line.
    lines = record().read_text().split("\n") if record().exists() else []
    complete = [json.loads(line) for line in lines if line.endswith("}")]
    last = {(entry["name"], entry["fault"]): entry for entry in complete}
    found = [last.get((mutant["name"], content(mutant))) for mutant in mutants]
    ran = [entry for entry in found if entry]
    noticed = [entry for entry in ran if entry["result"] == "noticed"]
    never = [mutant for mutant, entry in zip(mutants, found) if entry is None]
    print("\nall runs so far:")
    for mutant in never if in_full else []:
        print(f'never ran: {mutant["name"]} ({mutant["room"]})')
    for entry in ran:
        if entry["result"] != "noticed":
            print(f'{entry["result"]}, at {entry["commit"]}: {entry["name"]} ({entry["room"]})')
    for of in dict.fromkeys(entry["commit"] for entry in sorted(ran, key=lambda entry: entry["at"])):
        own = [entry for entry in ran if entry["commit"] == of]
        days = sorted({entry["at"][:10] for entry in own})
        print(f'at {of}, {" to ".join(dict.fromkeys([days[0], days[-1]]))}: '
              f'{sum(entry["result"] == "noticed" for entry in own)} of {len(own)} noticed')
    print(f"{len(noticed)} of {len(mutants)} faults were noticed, {len(ran) - len(noticed)} were not, "
          f"{len(never)} never ran")


def choose(mutants, arguments):
    first, count = 0, 1
    if arguments[:1] == ["--shard"]:
        first, count = (int(number) for number in arguments[1].split("/"))
        arguments = arguments[2:]
    fit = [m for m in mutants if not arguments or any(word in m["name"] + m["file"] for word in arguments)]
    chosen = fit[first::count]
    return chosen or sys.exit(f"error: no fault contains {arguments}")


def plant(mutant, tree, target, useless):
    """Puts the fault into the copy, runs its tests, and takes it out. Notes in the fault what came of it. Tests that are
    `useless` do not pass without a fault: they would notice every fault, or none."""
    mutant["layers"] = []
    problems = [f"does not fit: {problem}" for problem in misfits_of(mutant, tree)]
    problems += [f"without the fault {useless[tuple(of)]}" for of in mutant["checks"] if tuple(of) in useless]
    if problems:
        print("\n".join(f"       {problem}" for problem in problems), flush=True)
        mutant["result"] = problems[0].split(":")[0]
        return
    file = tree / mutant["file"]
    original = file.read_text()
    faulty = original.replace(mutant["find"], mutant["replace"])
    file.write_text(faulty)
    results = []
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
            results.append("survived" if said == "passed" else said)
    finally:
        file.write_text(original)
    wrong = [said for said in results if said not in ("failed", "too long")]
    mutant["result"] = wrong[0] if wrong else "noticed"


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: terminated"))
    mutants = load()
    if sys.argv[1:] == ["--record"]:
        return show_record(mutants, in_full=True)
    if sys.argv[1:] == ["--check"]:
        wrong = misfits(mutants)
        return wrong and sys.exit("error: these faults of tests/mutants do not fit:\n" + "\n".join(wrong))
    chosen = choose(mutants, sys.argv[1:])
    home = Path(os.environ["CARGO_TARGET_DIR"]) / "mutants"
    tree, target = home / "tree", home / "target"
    tree.mkdir(parents=True, exist_ok=True)
    copy_sources(tree)
    seed(target)
    of_commit = commit()
    fit = [mutant for mutant in chosen if not any(misfits_of(mutant))]
    useless = {}
    for check in sorted({tuple(check) for mutant in fit for check in mutant["checks"]}):
        said, what = verdict(list(check), tree, target)
        print(f'without a fault  {" ".join(check[1:])}: {said} {what}', flush=True)
        if said != "passed":
            useless[check] = said
    for number, mutant in enumerate(chosen, 1):
        print(f'{number:2}/{len(chosen)}  {mutant["name"]} ({mutant["file"]})', flush=True)
        began = time.monotonic()
        plant(mutant, tree, target, useless)
        mutant["noticed"] = mutant["result"] == "noticed"
        note(mutant, of_commit, began)
    table(chosen)
    show_record(mutants, in_full=False)
    missed = [f'{mutant["name"]}: {mutant["result"]}' for mutant in chosen if not mutant["noticed"]]
    if missed:
        sys.exit(f"error: {len(missed)} of {len(chosen)} faults were not noticed:\n" + "\n".join(missed))


main()
