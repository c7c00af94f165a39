# SPDX-License-Identifier: Apache-2.0
"""The pages' shell blocks run as they stand, one after the other, in a copy of the repository with the programs on the PATH.

An answer that a page shows is the one that comes. A block `json` after a shell block with one curl is its answer, of a stream line by
line; a block `text` after a shell block of one command, or after Python that is run, is its output. "..." in a text of the page stands
for anything (ids); of MASKED members the kind counts alone; other numbers may differ by a thousandth.

commands_test.py PAGE runs one page's; without a page, every block of every page is looked for: it is run or listed here.
Needs LINTEL_SERVER, a program beside the others, and LINTEL_PYTHON, where the package `lintel` is. Exit status 77: something that the page needs is not installed here.
"""

import ctypes
import fcntl
import glob
import gzip
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from pages import ROOT, read

PAGES = ["README.md", "docs/chat.md", "docs/recipes.md", "docs/sessions.md", "docs/operations.md", "docs/from_pytorch.md",
         "docs/messages.md", "docs/ollama.md",
         *sorted(os.path.relpath(page, ROOT) for page in glob.glob(os.path.join(ROOT, "docs/http*.md")))]
BUILDS = "builds everything: .ci/run does it"
# Blocks that are not run: page, how the block begins, why.
NOT_RUN = [
    ("README.md", "scripts/demo.sh", BUILDS),
    ("README.md", "scripts/setup.sh", BUILDS),
    ("README.md", "curl -fsSL https://github.com", "installs a release: scripts/package_test.sh does, from a folder; "
     "pulls from a hub: tests/cli/run_end_to_end_test.cpp does, from one of its own"),
    ("docs/operations.md", "curl -fsSL https://github.com", "installs a release: scripts/package_test.sh does, from a folder"),
    ("docs/recipes.md", "grpcurl", "Debian 12 has no package of it"),
    ("docs/messages.md", "export ANTHROPIC_BASE_URL", "starts Claude Code: tests/claude_code does"),
    ("docs/operations.md", "scripts/package.sh", "installs a package and starts a unit: scripts/package_test.sh"),
]
# Texts that the answers of a page contain.
ANSWERS = {"docs/chat.md": ['"role":"assistant"', '"cached_tokens"', '"previous_response_id":"resp_'],
           "docs/messages.md": ["event: message_start", "event: content_block_delta", "event: message_stop"],
           "docs/ollama.md": ['"done_reason":"length"'],
           "docs/http.md": ['"text":"', "FINISH_REASON_LENGTH"], "docs/sessions.md": ["Once upon"],
           "docs/from_pytorch.md": ["brown fox"]}
# Modules of Python: the page's Python is run, too. Of OPTIONAL pages the rest is run without them.
NEEDS = {"docs/from_pytorch.md": "torch, numpy, grpc", "README.md": "grpc, google.protobuf",
         "docs/sessions.md": "grpc, google.protobuf"}
OPTIONAL = {"README.md", "docs/sessions.md"}
MASKED = {"created", "created_at", "completed_at", "timings"}
PORTS = [8080, 9464, 50051]
SECONDS = 280
SHELL, HEADING, OTHERS = "sh", "##", {"python", "js", "json", "toml", "text"}

# The lines before the blocks: the server runs beside them until the next one, and a refusal of curl's is an error.
BEFORE = r"""set -euo pipefail
server=
stop_server() {
  [[ -n $server ]] || return 0
  kill -TERM "$server"
  wait "$server"
  server=
  exec 9<&-  # with its unread output
}
lintel-server() {
  stop_server
  command lintel-server "$@" 9<&- >"$work/ready" 2>>"$work/server.log" &
  server=$!
  exec 9<"$work/ready"
  read -r -u 9 || { cat "$work/server.log" >&2; return 1; }
}
curl() { command curl -sS --fail-with-body --max-time 120 "$@"; }
trap 'status=$?; stop_server || true; exit $status' EXIT
"""


def blocks(page):
    """(language, text) of each fenced block, and (HEADING, "") where a section begins."""
    found, language, text = [], None, ""
    for line in read(page).splitlines(keepends=True):
        if language is None and line.startswith("```"):
            language, text = line[3:].strip(), ""
        elif language is not None and line == "```\n":
            found.append((language, text))
            language = None
        elif language is not None:
            text += line
        elif line.startswith("## "):
            found.append((HEADING, ""))
    return found


def is_run(page, text):
    return not any(page == listed and text.startswith(begin) for listed, begin, _ in NOT_RUN)


def kind(value):
    """The name of a value's type; whole numbers are numbers."""
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def matches(shown, came):
    """Returns whether a text is the one shown, whose "..." stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), came, re.DOTALL) is not None


def differences(shown, came, place=""):
    """The parts of a value that a page shows and that did not come, with their places."""
    if kind(shown) != kind(came):
        return [f"{place}: {came!r}, shown as {shown!r}"]
    if isinstance(shown, dict):
        found = [f"{place}: {name} is {'not shown' if name in came else 'not there'}"
                 for name in sorted(set(shown) ^ set(came))]
        for name in sorted(set(shown) & set(came)):
            if name in MASKED:
                if kind(shown[name]) != kind(came[name]):
                    found.append(f"{place}/{name}: of another kind")
            else:
                found += differences(shown[name], came[name], f"{place}/{name}")
        return found
    if isinstance(shown, list):
        found = [] if len(shown) == len(came) else [f"{place}: {len(came)} elements, shown are {len(shown)}"]
        for i, (one, other) in enumerate(zip(shown, came)):
            found += differences(one, other, f"{place}/{i}")
        return found
    if isinstance(shown, str):
        equal = matches(shown, came)
    else:
        equal = abs(shown - came) <= abs(shown) / 1000 if kind(shown) == "number" else shown == came
    return [] if equal else [f"{place}: {came!r}, shown as {shown!r}"]


def json_values(text):
    """One value, or those of a stream's lines, of which tokens come in chunks of any size: these are put together."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        lines = [json.loads(line) for line in text.splitlines() if line]
    merged = {}
    for line in lines:
        for chunk in line.pop("chunks", []):
            first = merged.setdefault("chunks", [{**chunk, "tokens": [], "text": ""}])[0]
            first["tokens"] += chunk["tokens"]
            first["text"] += chunk["text"]
        merged.update(line)
    return merged


class DifferencesTest(unittest.TestCase):
    def test_a_value_that_is_not_the_one_shown_is_found(self):
        shown = {"id": "cmpl-...", "created": 1, "choices": [{"text": " fox", "score": -39.943, "end": None}]}
        came = {"id": "cmpl-12", "created": 2, "choices": [{"text": " fox", "score": -39.94340919, "end": None}]}
        self.assertEqual(differences(shown, came), [])
        for change in ({"id": "chat-12"}, {"created": "2"}, {"choices": []}, {"more": 1},
                       {"choices": [{"text": " fo", "score": -39.943, "end": None}]},
                       {"choices": [{"text": " fox", "score": -21.5, "end": None}]},
                       {"choices": [{"text": " fox", "score": -39.943, "end": 0}]}):
            with self.subTest(change=change):
                self.assertEqual(len(differences(shown, {**came, **change})), 1)
        self.assertEqual(len(differences(shown, {"id": "cmpl-12", "choices": came["choices"]})), 1)

    def test_lines_of_a_stream_are_compared_whatever_their_chunks_are(self):
        def line(*chunks, **more):
            return json.dumps({"chunks": [{"firstPosition": str(4 + i), "tokens": list(text.encode()), "text": text}
                                          for i, text in chunks], **more})
        one = line((0, "you"), finished=[{"timings": {"queued": "1s"}}])
        several = line((0, "y")) + "\n" + line((1, "ou"), finished=[{"timings": {"queued": "2s"}}]) + "\n"
        self.assertEqual(differences(json_values(one), json_values(several)), [])
        self.assertNotEqual(differences(json_values(one), json_values(line((0, "yo")))), [])


class ListTest(unittest.TestCase):
    def test_each_block_is_run_or_listed_and_what_is_listed_is_there(self):
        for page in PAGES:
            for language, text in blocks(page):
                with self.subTest(page=page, block=text):
                    self.assertIn(language, {SHELL, HEADING} | OTHERS)
                    if language in OTHERS:
                        self.assertNotRegex(text, r"(?m)^(lintel[\w-]*|curl|scripts/\S+|python3|cmake) ")
        for page, begin, _ in NOT_RUN:
            with self.subTest(page=page, begin=begin):
                found = [text for language, text in blocks(page) if language == SHELL and text.startswith(begin)]
                self.assertEqual(len(found), 1)

    def test_each_page_is_a_test(self):
        tests = read("tests/docs/CMakeLists.txt")
        for page in PAGES:
            self.assertTrue(page in tests or page.startswith("docs/http"), page)

    def test_each_page_begins_with_a_server_and_what_follows_is_for_another_terminal(self):
        for page in PAGES:
            shell = [text for language, text in blocks(page) if language == SHELL and is_run(page, text)]
            with self.subTest(page=page):
                self.assertTrue(page == "docs/from_pytorch.md" or servers(shell[0]))
                for text in shell:
                    lines = re.sub(r"\\\n", " ", text).splitlines()
                    self.assertEqual(servers(text), lines[len(lines) - len(servers(text)):])


def servers(text):
    """A block's commands that start a server, each on one line."""
    return re.findall(r"^lintel-server(?: .*)?$", text.replace("\\\n", " "), re.MULTILINE)


def png(rows):
    """A grey picture."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    lines = b"".join(b"\0" + bytes(row) for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def write_readers_files(directory):
    """Writes the files of a reader: MNIST's file, a photograph of a 1, texts, sequences."""
    images = b"".join(bytes(200 if 12 <= x < 16 and 4 <= y < 24 else 0 for y in range(28) for x in range(28))
                      for _ in range(10))
    stroke = [[20 if 28 <= x < 34 and 10 <= y < 70 else 230 for x in range(64)] for y in range(80)]
    for name, data in {
            "t10k-images-idx3-ubyte.gz": gzip.compress(struct.pack(">IIII", 2051, 10, 28, 28) + images),
            "photo.png": png(stroke), "story.txt": b"Once upon a time ",
            "tinyshakespeare.txt": b"ROMEO:\nBut soft, what light through yonder window breaks?\n" * 40,
            "sequences.jsonl": b"[0, 0, 12, 250]\n[0, 0, 0, 1, 2]\n"}.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)


def leave_the_network():
    """Into a network of this process's own, where every port is free. Returns whether the ports are."""
    libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    new_user, new_network = 0x10000000, 0x40000000
    is_alone = libc.unshare(new_network) == 0
    if not is_alone and libc.unshare(new_user | new_network) == 0:
        is_alone = True
        for name, text in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if is_alone:
        with socket.socket() as control:
            fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def python_with(modules):
    """A Python that has them, or None."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", f"import {modules}"], capture_output=True).returncode == 0:
            return python
    return None


def write_script(page, work, has_python):
    """The page's blocks as a script, each with an output of its own. Returns the outputs' numbers and blocks."""
    ran, first, current, wanted = [], None, None, None
    with open(os.path.join(work, "script"), "w", encoding="utf-8") as script:
        def run_block(number, text, command):
            with open(os.path.join(work, f"{number}.sh"), "w", encoding="utf-8") as file:
                file.write(text)
            script.write(f'echo "$PAGE, block {number}:" $(head -n 1 "$work/{number}.sh")\n' +
                         command.format(number=number) + f' </dev/null >"$work/{number}.out"\n')
            ran.append((number, text))

        script.write(BEFORE)
        for number, (language, text) in enumerate(blocks(page)):
            name = re.match(r"# (\w+\.py)\n", text)
            if language == "python" and name:  # a file that the next commands use
                with open(os.path.join(work, "repository", name[1]), "w", encoding="utf-8") as file:
                    file.write(text)
            elif language == "python" and has_python:
                run_block(number, text, 'PYTHONPATH=$LINTEL_PYTHON python3 "$work/{number}.sh"')
            if language == HEADING:
                wanted = first  # a section is for the page's server, unless it has one of its own
            if language != SHELL or not is_run(page, text):
                continue
            if started := servers(text):
                first = first or started[0]
                current = wanted = started[-1]
            elif wanted != current:
                script.write(wanted + "\n")
                current = wanted
            run_block(number, text, '. "$work/{number}.sh"')
        script.write("stop_server\n")
    return ran


def run(page):
    if not shutil.which("curl"):
        return "no curl (scripts/setup.sh --clients installs it)"
    python = python_with(NEEDS.get(page, "os"))
    has_python = page in NEEDS and python is not None
    if python is None and page in OPTIONAL:
        print(f"no Python with {NEEDS[page]} (scripts/setup.sh --clients): the page's Python is not run", file=sys.stderr)
        python = sys.executable
    if python is None:
        return f"no Python with {NEEDS[page]} (scripts/setup.sh --training installs it)"
    if not leave_the_network():
        return f"no network of its own can be made here, and of the ports {PORTS} one is taken"
    with tempfile.TemporaryDirectory() as work:
        repository, binaries = (os.path.join(work, name) for name in ("repository", "bin"))
        os.mkdir(repository)
        os.mkdir(binaries)
        os.mkfifo(os.path.join(work, "ready"))
        os.symlink(python, os.path.join(binaries, "python3"))
        for name in os.listdir(ROOT):
            if name not in (".git", "build"):
                os.symlink(os.path.join(ROOT, name), os.path.join(repository, name))
        write_readers_files(repository)
        ran = write_script(page, work, has_python)
        path = [binaries, os.path.dirname(os.environ["LINTEL_SERVER"]), os.environ["PATH"]]
        script = subprocess.Popen(["bash", os.path.join(work, "script")], cwd=repository, start_new_session=True,
                                  env={**os.environ, "PATH": ":".join(path), "work": work, "PAGE": page})
        try:
            status = script.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)  # the server, too
            raise
        if status != 0:
            sys.exit(f"{page}: a block ended with {status}")
        check(page, ran, work)
    return None


def is_shown_as_text(language, text):
    """Returns whether a page may show a block's output: of Python, or of one command that is no curl."""
    commands = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line and not line.startswith("#")]
    return language == "python" or (len(commands) == 1 and not servers(text))


def check(page, ran, work):
    """Compares the answers with those that the page shows."""
    case, everything, all_blocks = unittest.TestCase(), "", blocks(page)
    for number, text in ran:
        with open(os.path.join(work, f"{number}.out"), encoding="utf-8", errors="replace") as file:
            out = file.read()
        everything += out
        case.assertNotIn('{"error"', out, text)
        language, shown = all_blocks[number + 1] if number + 1 < len(all_blocks) else (HEADING, "")
        if language == "json" and len(re.findall("(?m)^curl ", text)) == 1:
            found = differences(json_values(shown), json_values(out))
            case.assertEqual(found, [], f"{text}{out}")
        elif language == "text" and is_shown_as_text(all_blocks[number][0], text):
            case.assertTrue(matches(shown.strip(), out.strip()), f"{text}prints\n{out}")
    for answer in ANSWERS.get(page, []):
        case.assertIn(answer, everything)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        unittest.main()
    for argument in sys.argv[1:]:
        if missing := run(argument):
            print("SKIPPED: " + missing, file=sys.stderr)
            sys.exit(77)
