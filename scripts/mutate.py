#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small defects, one at a time, and reports which of them no test notices."""

import argparse
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TABLE = pathlib.Path("tests/mutations/mutations.toml")
ROOT = REPOSITORY / "build" / "mutate"
KEYS = {"name", "defect", "tests", "file", "find", "replace"}
# The first line of a file with defects. tests/page/chromium.mjs sets the switch in a page.
SWITCH = {
    ".js": "globalThis.LINTEL_MUTATION ??= (name) => name === globalThis.process?.env.LINTEL_MUTATION;\n",
    ".mjs": "globalThis.LINTEL_MUTATION ??= (name) => name === globalThis.process?.env.LINTEL_MUTATION;\n",
}
CXX_SWITCH = '#include "tests/mutations/mutation.h"\n'

EPILOG = """\
tests/mutations/mutations.toml has the defects. All of them are planted in a copy of the tree, which is
built once. Then the tests of each defect run with LINTEL_MUTATION=NAME, and have to fail.

Exit status: 0; 1 when more than --bar defects survive; 2 when the table does not fit the tree, a build
fails, or tests fail without any defect.
"""


class MutateError(Exception):
    """The run cannot continue; the text says why."""


def read_table() -> list[dict]:
    """The defects of the table, each key checked."""
    with open(REPOSITORY / TABLE, "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    names = set()
    for mutation in mutations:
        name = mutation.get("name", "(no name)")
        if set(mutation) != KEYS:
            raise MutateError(f"{TABLE}: {name}: the keys must be {', '.join(sorted(KEYS))}")
        if name in names:
            raise MutateError(f"{TABLE}: two defects are named {name}")
        names.add(name)
        if not mutation["tests"]:
            raise MutateError(f"{TABLE}: {name} names no tests")
        if f'LINTEL_MUTATION("{name}")' not in mutation["replace"].replace("'", '"'):
            raise MutateError(f'{TABLE}: {name}: replace does not contain LINTEL_MUTATION("{name}")')
    return mutations


def planted(mutations: list[dict], root: pathlib.Path) -> dict[str, str]:
    """The text of each file with all of its defects, by its path below root."""
    places: dict[str, list[tuple[int, int, str, str]]] = {}
    texts: dict[str, str] = {}
    faults = []
    for mutation in mutations:
        name, file, find = mutation["name"], mutation["file"], mutation["find"]
        if file not in texts:
            if not (root / file).is_file():
                faults.append(f"{name}: there is no file {file}")
                continue
            texts[file] = (root / file).read_text(encoding="utf-8")
        count = texts[file].count(find)
        if count != 1:
            faults.append(f"{name}: its text occurs {count} times in {file}, not once")
            continue
        start = texts[file].index(find)
        places.setdefault(file, []).append((start, start + len(find), mutation["replace"], name))
    for file, found in places.items():
        found.sort()
        for one, two in zip(found, found[1:]):
            if two[0] < one[1]:
                faults.append(f"{one[3]} and {two[3]} replace the same text of {file}")
        for start, end, replacement, _ in reversed(found):
            texts[file] = texts[file][:start] + replacement + texts[file][end:]
        texts[file] = SWITCH.get(pathlib.Path(file).suffix, CXX_SWITCH) + texts[file]
    if faults:
        raise MutateError("\n".join([f"{TABLE} does not fit the tree:", *faults]))
    return {file: texts[file] for file in places}


def make_tree(mutations: list[dict], tree: pathlib.Path) -> None:
    """The copy of the tree with all defects. Unchanged files keep their times, for the next build."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    files = {name for name in listed.split("\0") if name and (REPOSITORY / name).is_file()}
    texts = planted(mutations, REPOSITORY)
    for path in [p for p in tree.rglob("*") if p.is_file() or p.is_symlink()]:
        if str(path.relative_to(tree)) not in files:
            path.unlink()
    for name in files:
        wanted = texts[name].encode() if name in texts else (REPOSITORY / name).read_bytes()
        target = tree / name
        if target.is_file() and target.read_bytes() == wanted:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wanted)
        shutil.copymode(REPOSITORY / name, target)


def build_tree(tree: pathlib.Path, build: pathlib.Path, runs: list[str]) -> None:
    """The programs that the runs need, built from the copy."""
    programs = (run.split()[0] for run in runs)
    targets = sorted({"lintel-server" if program == "page" else program for program in programs})
    configure = ["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                 "-DLINTEL_ASSERTIONS=ON"]
    if subprocess.run(configure, stdout=subprocess.DEVNULL).returncode != 0:
        raise MutateError(f"the copy in {tree} cannot be configured")
    if subprocess.run(["cmake", "--build", build, "--target", *targets]).returncode != 0:
        raise MutateError(f"the copy in {tree} does not build")


class Outcome:
    """The end of one run of tests: whether it failed, and the test that did."""

    def __init__(self, run: str, status: int | None, output: str):
        self.failed = status != 0
        self.output = output
        if run.startswith("page"):
            found = re.search(r"^ *(?:not ok \d* -|✖) (.*)", output, re.M)
            self.test = found[1] if found else run
        else:
            found = re.findall(r'<TestCase name="([^"]*)"', output)
            self.test = found[-1] if found else run
        if status is None:
            self.test += ", which did not end"


def run_tests(run: str, mutation: str | None, seconds: float, tree: pathlib.Path,
              build: pathlib.Path) -> Outcome:
    """Runs "EXECUTABLE [SPEC]" up to its first failure, for `seconds` at most."""
    environment = {key: value for key, value in os.environ.items() if key != "LINTEL_MUTATION"}
    if mutation:
        environment["LINTEL_MUTATION"] = mutation
    executable, _, spec = run.partition(" ")
    if executable == "page":
        environment |= {"LINTEL_SERVER": str(build / "bin/lintel-server"),
                        "LINTEL_SCREENSHOTS": str(build / "page")}
        command = [tree / "tests/page/run.sh", spec]
    else:
        command = [build / "bin" / executable, *([spec] if spec else []), "--abort", "--warn",
                   "NoTests", "--filenames-as-tags", "--reporter", "xml"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # with the servers and browsers that it started
            process.wait()
            status = None
        output.seek(0)
        return Outcome(run, status, output.read().decode(errors="replace"))


def run(arguments: argparse.Namespace, mutations: list[dict], chosen: list[dict]) -> int:
    """Plants the chosen defects one after the other. Returns the exit status."""
    tree, build = ROOT / "tree", ROOT / "build"
    runs = sorted({test for mutation in chosen for test in mutation["tests"]})
    if arguments.build:
        build = arguments.build.resolve()
    else:
        make_tree(mutations, tree)
        build_tree(tree, build, runs)
    print("== without any defect", flush=True)
    limits = {}
    for tests in runs:
        start = time.monotonic()
        outcome = run_tests(tests, None, 600, tree, build)
        if outcome.failed:
            print("\n".join(outcome.output.splitlines()[-40:]), file=sys.stderr)
            raise MutateError(f"tests fail without any defect: {tests}")
        limits[tests] = 3 * (time.monotonic() - start) + 20
    print(f"== {len(chosen)} defects", flush=True)
    survivors = []
    for mutation in chosen:
        start = time.monotonic()
        name = mutation["name"]
        outcomes = (run_tests(tests, name, limits[tests], tree, build) for tests in mutation["tests"])
        killer = next((outcome for outcome in outcomes if outcome.failed), None)
        if killer is None:
            survivors.append(name)
            print(f"{name:36} SURVIVED", flush=True)
        else:
            seconds = time.monotonic() - start
            print(f'{name:36} killed by "{killer.test}" in {seconds:.0f} s', flush=True)
    print(f"{len(survivors)} of {len(chosen)} survive")
    if len(survivors) > arguments.bar:
        print(f"more than {arguments.bar}: {' '.join(survivors)}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="mutate.py", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="only this defect; may be repeated; NAME may contain *")
    parser.add_argument("--bar", type=int, default=5, metavar="N",
                        help="exit with 1 when more than N defects survive [5]")
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR",
                        help="do not build: run what an earlier run has built in DIR")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print each name and its defect")
    mode.add_argument("--check", action="store_true",
                      help="only check that each text occurs exactly once in its file; takes a second")
    arguments = parser.parse_args()
    try:
        mutations = read_table()
        only = arguments.only or ["*"]
        chosen = [m for m in mutations if any(fnmatch.fnmatchcase(m["name"], name) for name in only)]
        if not chosen:
            raise MutateError(f"no defect is named {' '.join(only)}")
        if arguments.list:
            for mutation in chosen:
                print(f"{mutation['name']:36} {mutation['defect']}")
            return 0
        if arguments.check:
            planted(mutations, REPOSITORY)
            print(f"all {len(mutations)} defects can be planted")
            return 0
        return run(arguments, mutations, chosen)
    except MutateError as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
