# SPDX-License-Identifier: Apache-2.0
"""The last step of scripts/cluster_demo.sh: a Redis Cluster, three servers, a client, and blows to them.

Python's standard library alone: the client speaks lines of JSON over HTTP.
"""

import argparse
import http.client
import json
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib

SIDE = 28
PIXELS = SIDE * SIDE
NODE_TIMEOUT_MS = 1000
LONG = 0.1  # seconds without a token that count as a pause


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class RedisNode:
    """One redis-server of the cluster."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.port, self.bus, self.folder = free_port(), free_port(), folder
        folder.mkdir()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
             "--appendonly", "yes", "--cluster-enabled", "yes", "--cluster-port", str(self.bus),
             "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-replica-validity-factor", "0",
             "--logfile", "redis.log", "--maxmemory-policy", "noeviction"])
        wait_for(f"redis-server on port {self.port}", lambda: self.ask("PING") == "PONG")

    def ask(self, *words: str) -> str:
        done = subprocess.run(["redis-cli", "-p", str(self.port), *words], capture_output=True, text=True, timeout=10)
        return done.stdout.strip()

    def is_master(self) -> bool:
        return self.process.poll() is None and self.ask("ROLE").startswith("master")


class Cluster:
    """Three masters, three replicas."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.nodes = [RedisNode(folder / f"node{i}") for i in range(6)]
        ids = [node.ask("CLUSTER", "MYID") for node in self.nodes]
        for i, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(i + 1))
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(node.bus))
        wait_for("all nodes have met", lambda: all(all(i in node.ask("CLUSTER", "NODES") for i in ids) for node in self.nodes))
        for i in range(3):
            self.nodes[i].ask("CLUSTER", "ADDSLOTSRANGE", str(16384 * i // 3), str(16384 * (i + 1) // 3 - 1))
            self.nodes[3 + i].ask("CLUSTER", "REPLICATE", ids[i])
        wait_for("the cluster is up", self.is_up)

    def is_up(self) -> bool:
        return all(
            "cluster_state:ok" in node.ask("CLUSTER", "INFO")
            and (node.is_master() or "master_link_status:up" in node.ask("INFO", "replication"))
            for node in self.nodes
        )

    def url(self) -> str:
        return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)


class Server:
    """One lintel-server."""

    def __init__(self, number: int, flags: argparse.Namespace, store: str, folder: pathlib.Path) -> None:
        self.name, self.port = f"server {number + 1}", free_port()
        self.log = open(folder / f"server{number}.log", "ab")
        self.command = [
            flags.server, "--model", flags.model, "--listen", f"127.0.0.1:{free_port()}", "--http-listen", f"127.0.0.1:{self.port}",
            "--session-store", store, "--session-lease", flags.lease, "--replica-id", f"demo-{number}", "--workers", "1",
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log)
        if not self.process.stdout.readline().startswith(b"lintel-server ready on "):
            raise SystemExit(f"{self.name} does not start: see {self.log.name}")


def wait_for(what: str, condition) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, subprocess.SubprocessError):
            pass
        time.sleep(0.02)
    raise SystemExit(f"not in a minute: {what}")


class Refused(Exception):
    """The server says no, or is not there: worth another try elsewhere."""


def call(server: Server, method: str, request: dict, patience: float = 5.0):
    """Yields the messages of an answer, or raises Refused."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=patience)
    try:
        connection.request("POST", f"/lintel.v1.{method}", json.dumps(request), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(answer.read().decode())
        has_ended = not method.endswith("/Generate")
        for line in answer:
            message = json.loads(line)
            if "error" in message:
                raise Refused(json.dumps(message["error"]))
            has_ended = has_ended or "finished" in message
            yield message
        if not has_ended:  # a stream that is cut off ends like one that is whole, but for this
            raise Refused("the connection is lost")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Refused(str(error)) from error
    finally:
        connection.close()


class Artist(threading.Thread):
    """Draws digits until it is stopped, at the servers that answer."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(daemon=True)
        self.servers, self.serving, self.over = servers, 0, False
        self.digits: list[list[int]] = []  # whole ones; digit i has the seed i + 1
        self.times: list[float] = []  # times of the tokens
        self.tries = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            while not self.over:
                self.digits.append(self.draw(len(self.digits) + 1))
        except Exception as error:  # pylint: disable=broad-except
            self.wrong.append(repr(error))

    def anyone(self, method: str, request: dict, on_message) -> None:
        end = time.monotonic() + 60
        last = None
        while time.monotonic() < end:
            self.tries += 1
            try:
                for message in call(self.servers[self.serving], method, request):
                    on_message(message)
                return
            except Refused as error:
                last = error
                self.serving = (self.serving + 1) % len(self.servers)
                time.sleep(0.05)
        raise RuntimeError(f"no server answers: {last}")

    def draw(self, seed: int) -> list[int]:
        session: dict = {}
        self.anyone("SessionService/Create", {"durability": "DURABILITY_TOKEN"}, session.update)
        request = {"sessionId": session["id"], "callId": uuid.uuid4().hex, "maxNewTokens": PIXELS,
                   "sampling": {"seed": str(seed)}}
        tokens: list[int] = []
        start: list[int] = []  # position of the first token: after the model's start token

        def take(message: dict) -> None:
            for chunk in message.get("chunks", []):
                position = int(chunk.get("firstPosition", 0))
                if not start:
                    start.append(position)
                if position != start[0] + len(tokens):
                    self.wrong.append(f"position {position} came, not {start[0] + len(tokens)}")
                tokens.extend(chunk["tokens"])
                request["fromPosition"] = str(position + len(chunk["tokens"]))
                self.times += [time.monotonic()] * len(chunk["tokens"])

        self.anyone("GenerationService/Generate", request, take)
        if start[0] + len(tokens) != PIXELS:
            self.wrong.append(f"digit {seed} ended after {len(tokens)} tokens")
        return [0] * start[0] + tokens

    def longest_pause(self, begin: float, end: float) -> float:
        times = [moment for moment in list(self.times) if moment >= begin]
        before = [moment for moment in list(self.times) if moment < begin][-1:] or [begin]
        longest = 0.0
        for last, now in zip(before + times, times):
            if last > end:
                break
            longest = max(longest, now - last)
        return longest


def png(rows: list[bytes]) -> bytes:
    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", pixels) + part(b"IEND", b"")


def picture(digits: list[list[int]], columns: int = 16, scale: int = 2) -> bytes:
    rows = []
    for first in range(0, len(digits), columns):
        shown = digits[first:first + columns]
        shown += [[0] * PIXELS] * (columns - len(shown) if first > 0 else 0)
        for y in range(SIDE):
            row = bytearray()
            for digit in shown:
                for pixel in digit[y * SIDE:(y + 1) * SIDE]:
                    row += bytes([pixel] * scale)
                row += bytes([128] * scale)
            rows += [bytes(row)] * scale
        rows += [bytes([128] * len(rows[0]))] * scale
    return png(rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("server", "model", "lease", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    flags = parser.parse_args()
    out, folder = pathlib.Path(flags.out), pathlib.Path(tempfile.mkdtemp(prefix="lintel-cluster-"))
    children: list = []
    blows: list[tuple[str, float, float]] = []
    try:
        print("== six redis-servers, a cluster of three masters with a replica each", flush=True)
        cluster = Cluster(folder)
        children += cluster.nodes
        print(f"== three lintel-servers, --session-store {cluster.url()}", flush=True)
        servers = []
        for i in range(3):
            servers.append(Server(i, flags, cluster.url(), out))
            children.append(servers[-1])
        artist = Artist(servers)
        artist.start()
        wait_for("the first tokens", lambda: len(artist.times) > 50)

        def strike(what: str, victim, mend) -> None:
            print(f"   {what}", flush=True)
            begin = time.monotonic()
            victim.process.kill()
            victim.process.wait()
            time.sleep(5)
            mend()
            time.sleep(3)
            blows.append((what, begin, time.monotonic()))

        print("== digits are drawn; now", flush=True)
        for round_ in range(flags.rounds):
            server = servers[artist.serving]
            strike(f"{server.name}, which streams, is killed", server, server.start)
            masters = [node for node in cluster.nodes if node.is_master()]
            master = masters[round_ % len(masters)]
            strike(f"a master, port {master.port}, is killed", master, master.start)
            wait_for("the cluster is whole again", cluster.is_up)
        artist.over = True
        artist.join(120)
        if artist.is_alive():
            artist.wrong.append("the last digit was not finished in two minutes")

        same = 0
        for i, digit in enumerate(artist.digits):
            tokens: list[int] = []
            request = {"maxNewTokens": PIXELS, "sampling": {"seed": str(i + 1)}}
            for message in call(servers[0], "GenerationService/Generate", request, 60):
                for chunk in message.get("chunks", []):
                    tokens += chunk["tokens"]
            same += len(tokens) > 0 and tokens == digit[-len(tokens):]
    finally:
        for child in children:
            child.process.send_signal(signal.SIGKILL)
            child.process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    (out / "digits.png").write_bytes(picture(artist.digits))
    table = ["| blow | the stream stood still for at most |", "|---|---:|"]
    table += [f"| {what} | {artist.longest_pause(begin, end):.2f} s |" for what, begin, end in blows]
    (out / "pauses.md").write_text("\n".join(table) + "\n")
    print("\n".join(table))
    print(f"{len(artist.digits)} digits, {len(artist.times)} tokens, {artist.tries} calls: {out}/digits.png")
    print(f"{same} of {len(artist.digits)} have the bits of one that nothing disturbed")
    for wrong in artist.wrong:
        print(f"WRONG: {wrong}")
    return 0 if same == len(artist.digits) and same > 0 and not artist.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
