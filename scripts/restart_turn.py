#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the first turn of a long session after kill -9 and a restart of its server.

    scripts/random_checkpoint.py qwen3.5-0.8b /tmp/qwen
    scripts/restart_turn.py /tmp/qwen --kv-type int8 --tokens 20000

A session reads so many random tokens, the server is killed, another one starts with the same --session-store, and
the session continues. Printed as JSON: milliseconds from the request to its first token, the tokens that were read
again (0: the state was loaded), bytes of the store, the time of a second turn, whose state is in memory, and the
server's resident memory against the bytes that the model and the session report.

ready_seconds is the time from the start of the process until it lists its model.

Exit status 1: tokens were read again, loading took longer than --most-load-ms at the median (the difference of both
times), the server was ready later than --most-ready-seconds at the median, or it took more than --most-extra-mb above
the bytes that are reported.
"""

import argparse
import http.client
import json
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A lintel-server of one model, and its HTTP port."""

    def __init__(self, arguments: argparse.Namespace, store: pathlib.Path) -> None:
        self.port = free_port()
        command = [str(arguments.bin / "lintel-server"), "--model", f"m={arguments.model}",
                   "--listen", f"127.0.0.1:{free_port()}", "--http-listen", f"127.0.0.1:{self.port}",
                   "--session-store", str(store), "--session-memory", "4GiB",
                   "--weight-type", arguments.weight_type, "--kv-type", arguments.kv_type, "--log-level", "warning",
                   *arguments.server_flag]
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server does not start")
            time.sleep(0.05)
        self.ready_seconds = time.monotonic() - begin

    def is_ready(self) -> bool:
        try:
            return "models" in self.call("ModelService/List", {})
        except OSError:
            return False

    def call(self, method: str, request: dict) -> dict:
        return list(self.stream(method, request))[-1]

    def stream(self, method: str, request: dict):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", f"/lintel.v1.{method}", json.dumps(request), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{method}: {answer.read().decode()}")
        for line in answer:
            message = json.loads(line)
            if "error" in message:
                raise SystemExit(f"{method}: {line.decode()}")
            yield message

    def resident_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(status.split("VmRSS:")[1].split()[0])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def turn(server: Server, session: str, ids: list[int], new_tokens: int) -> tuple[float, dict]:
    """Milliseconds to the first token, and what the end says."""
    begin = time.monotonic()
    first = None
    finish: dict = {}
    for message in server.stream("GenerationService/Generate", {
            "sessionId": session, "prompt": {"tokens": {"ids": ids}}, "maxNewTokens": new_tokens,
            "sampling": {"temperature": 0}, "maxTokensPerMessage": 1}):
        if first is None:
            first = time.monotonic() - begin
        if "finished" in message:
            finish = message["finished"][0]
    return 1e3 * (first or 0), finish


def measure(arguments: argparse.Namespace, folder: pathlib.Path) -> dict:
    store = folder / "store"
    draw = random.Random(arguments.seed)
    server = Server(arguments, store)
    try:
        session = server.call("SessionService/Create", {
            "maxTokens": str(arguments.tokens + 4096), "durability": "DURABILITY_INPUT"})["id"]
        begin = time.monotonic()
        turn(server, session, [draw.randrange(1000) for _ in range(arguments.tokens - 8)], 8)
        read_seconds = time.monotonic() - begin
        first, again, ready, replayed = [], [], [], 0
        for _ in range(arguments.rounds):
            server.kill()
            server = Server(arguments, store)
            ready.append(server.ready_seconds)
            for times in (first, again):
                taken, finish = turn(server, session, [draw.randrange(1000)], 2)
                times.append(taken)
                replayed += int(finish.get("replayedTokens", 0))
        model = server.call("ModelService/Get", {"name": "m"})
        reported = int(model["weightBytes"]) + int(server.call("SessionService/Get", {"id": session})["stateBytes"])
        resident = server.resident_bytes()
    finally:
        server.kill()
    return {
        "model": str(arguments.model), "weight_type": arguments.weight_type, "kv_type": arguments.kv_type,
        "tokens": arguments.tokens, "read_seconds": round(read_seconds, 1),
        "ready_seconds": round(statistics.median(ready), 2),
        "ready_seconds_all": [round(each, 2) for each in ready],
        "first_token_after_restart_ms": round(statistics.median(first), 1),
        "first_token_after_restart_ms_all": [round(each, 1) for each in first],
        "first_token_in_memory_ms": round(statistics.median(again), 1),
        "load_ms": round(statistics.median(first) - statistics.median(again), 1),
        "replayed_tokens": replayed,
        "resident_bytes": resident,
        "reported_bytes": reported,
        "store_bytes": sum(512 * path.stat().st_blocks for path in store.rglob("*") if path.is_file()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=5, help="restarts")
    parser.add_argument("--weight-type", default="int8")
    parser.add_argument("--kv-type", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-flag", action="append", default=[], help="one more word for lintel-server")
    parser.add_argument("--most-load-ms", type=float, default=float("inf"))
    parser.add_argument("--most-ready-seconds", type=float, default=float("inf"))
    parser.add_argument("--most-extra-mb", type=float, default=float("inf"))
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/ci/bin"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, pathlib.Path(folder))
    print(json.dumps(result, indent=1))
    extra_mb = (result["resident_bytes"] - result["reported_bytes"]) / 1e6
    if (result["replayed_tokens"] or result["load_ms"] > arguments.most_load_ms
            or result["ready_seconds"] > arguments.most_ready_seconds or extra_mb > arguments.most_extra_mb):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
