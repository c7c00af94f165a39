# SPDX-License-Identifier: Apache-2.0
"""`lintel-bench load` at a server over every API, and at peers that refuse, speak a dialect or stall.

Needs LINTEL_SERVER and LINTEL_BENCH, binaries.
"""

import csv
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "weights/text-rwkv7-small"
APIS = ("openai", "anthropic", "grpc", "generate")
# Flags of a run that ends with its conversations.
SMALL = ["--warm-up", "0", "--duration", "120", "--prompt-words", "5", "--answer-tokens", "8"]
DONE = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', "data: [DONE]\n\n"


def content(text):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + "\n\n"


class Peer(http.server.ThreadingHTTPServer):
    """OpenAI's API of another server. `answer(handler, number)` answers the request of that number, from 0."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.lock = threading.Lock()
        self.requests = []  # headers and body of each
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # clients that are gone


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_json(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send_piece(self, text):
        piece = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()

    def stream(self, *pieces):
        self.begin_stream()
        for piece in pieces:
            self.send_piece(piece)
        self.send_piece("")  # the last chunk

    def refuse(self, status):
        self.send_json(status, {"error": {"message": "no room", "type": "rate_limit_error", "code": None}})

    def do_GET(self):
        self.send_json(200, {"object": "list", "data": [{"id": "peer-model", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((self.headers, self.path, body))
        self.server.answer(self, number)


def catch_interrupts():
    """Restores SIGINT in the child: a test that runs in the background of a shell has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin(*words, stderr=subprocess.PIPE):
    return subprocess.Popen([os.environ["LINTEL_BENCH"], "load", *words], stdout=subprocess.PIPE, stderr=stderr, text=True,
                            stdin=subprocess.DEVNULL, preexec_fn=catch_interrupts)


class LoadTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def peer(self, answer):
        peer = Peer(answer)
        self.addCleanup(peer.server_close)
        self.addCleanup(peer.shutdown)
        return peer

    def load(self, *words, code=0):
        """The report as JSON, and standard error."""
        process = begin(*words, "--json", self.path("load.json"))
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, code, out + err)
        self.assertIn("### Requests", out)
        with open(self.path("load.json"), encoding="utf-8") as report:
            return json.load(report), err

    def table(self, report, title):
        return next(table for table in report["tables"] if table["title"] == title)


class OwnServerTest(LoadTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        command = [os.environ["LINTEL_SERVER"], "--model", str(MODEL), "--listen", "127.0.0.1:0", "--http-listen",
                   "127.0.0.1:0"]
        cls.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.addClassCleanup(cls.process.stdout.close)
        cls.addClassCleanup(cls.process.wait)
        cls.addClassCleanup(cls.process.kill)
        ready = cls.process.stdout.readline()
        assert ready.startswith("lintel-server ready on "), ready
        words = cls.process.stdout.readline().replace(",", "").split()
        cls.grpc, cls.http = words[words.index("gRPC") + 2], "http://" + words[words.index("HTTP") + 2]

    def target(self, api):
        return ["--api", api, "--target", self.http if api in ("openai", "anthropic") else self.grpc]

    def statistics(self):
        request = urllib.request.Request(self.http + "/lintel.v1.ModelService/Statistics", b"{}",
                                         {"content-type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        model = json.load(opener.open(request, timeout=20))["models"][0]
        return {name: int(model.get(name, 0)) for name in ("requests", "promptTokens", "generatedTokens")}

    def test_every_api_counts_what_the_server_counts(self):
        for api in APIS:
            with self.subTest(api=api):
                before = self.statistics()
                report, err = self.load(*self.target(api), *SMALL, "--users", "2", "--count", "3", "--turns", "2",
                                        "--ignore-eos")
                after = self.statistics()
                self.assertEqual(err, "")
                self.assertEqual((report["requests"], report["answered"]), (6, 6))
                self.assertEqual((report["refused"], report["failed"], report["unfinished"]), (0, 0, 0))
                self.assertEqual(report["answers_without_usage"], 0)
                self.assertEqual(after["requests"] - before["requests"], 6)
                self.assertAlmostEqual(report["tokens"], after["generatedTokens"] - before["generatedTokens"], 6)
                self.assertEqual(report["prompt_tokens"] - report["cached_tokens"],
                                 after["promptTokens"] - before["promptTokens"])
                self.assertGreater(report["tokens_per_s"], 0)
                self.assertGreater(report["ttft_ms"]["p50"], 0)
                self.assertLessEqual(report["ttft_ms"]["p50"], report["request_ms"]["most"])
                self.assertEqual([row[1]["value"] for row in self.table(report, "By turn")["rows"]], [3, 3])
                self.assertIn("text-rwkv7-small at ", report["run"]["model"])

    def test_arrivals_at_a_rate_are_those_of_the_seed(self):
        words = [*self.target("openai"), "--rate", "20", "--warm-up", "0", "--duration", "1.5", "--turns", "1",
                 "--prompt-words", "3-6", "--answer-tokens", "2", "--seed", "7", "--drain", "60"]
        first, _ = self.load(*words)
        second, _ = self.load(*words)
        self.assertGreater(first["requests"], 10)
        self.assertEqual(first["requests"], second["requests"])
        self.assertEqual((first["failed"], first["unfinished"], first["seed"]), (0, 0, 7))
        self.assertAlmostEqual(first["seconds"], 1.5, 6)

    def test_goodput_is_of_the_bounds(self):
        words = [*self.target("openai"), *SMALL, "--users", "1", "--count", "2", "--turns", "1"]
        easy, _ = self.load(*words, "--ttft-bound", "60", "--itl-bound", "60")
        self.assertEqual(easy["within_bounds"], 2)
        self.assertAlmostEqual(easy["goodput_requests_per_s"], easy["requests_per_s"])
        hard, _ = self.load(*words, "--ttft-bound", "0.000001")
        self.assertEqual((hard["within_bounds"], hard["goodput_requests_per_s"]), (0, 0))

    def test_ctrl_c_keeps_what_was_measured(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                before = self.statistics()["requests"]
                process = begin(*self.target("grpc"), "--users", "2", "--warm-up", "0", "--duration", "300", "--turns", "1",
                                "--prompt-words", "5", "--answer-tokens", "4", "--json")
                end = time.monotonic() + 60
                while self.statistics()["requests"] < before + 10 and time.monotonic() < end:
                    time.sleep(0.05)
                process.send_signal(number)
                out, err = process.communicate(timeout=30)
                self.assertEqual((process.returncode, err), (0, ""))
                report = json.loads(out)
                self.assertGreater(report["answered"], 0)
                self.assertLess(report["seconds"], 100)

    def test_files_and_a_plot_are_written(self):
        plot = ["--plot", self.path("load.png")] if shutil.which("gnuplot") else []
        report, _ = self.load(*self.target("openai"), *SMALL, "--users", "1", "--count", "3", "--turns", "2", "--ignore-eos",
                              "--csv", self.path("load.csv"), *plot)
        with open(self.path("load.csv"), newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        answered = [row["value"] for row in rows if (row["table"], row["column"]) == ("Requests", "answered")]
        self.assertEqual([float(value) for value in answered], [report["answered"]])
        if plot:
            with open(self.path("load.png"), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")

    def test_recorded_conversations_are_asked_in_turn(self):
        with open(self.path("talks.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"turns": [{"user": "Good morrow", "answer_tokens": 3}, {"user_words": 4, "answer_tokens": 2}]}\n'
                       '{"conversations": [{"from": "human", "value": "Who goes?"}, {"from": "gpt", "value": "12345678"}]}\n')
        report, _ = self.load(*self.target("anthropic"), *SMALL, "--users", "1", "--count", "2", "--ignore-eos",
                              "--conversations", self.path("talks.jsonl"))
        self.assertEqual(report["answered"], 3)
        self.assertLessEqual(report["tokens"], 3 + 2 + 2)


class PeerTest(LoadTest):
    def test_a_dialect_is_read_and_conversations_are_sent_whole(self):
        def answer(handler, _):
            whole = content("one ") + ": a comment\n\n" + content("two")
            handler.stream(": waiting\n\n", whole[:20], whole[20:21], whole[21:].replace("\n", "\r\n"), *DONE)

        peer = self.peer(answer)
        with open(self.path("key"), "w", encoding="utf-8") as file:
            file.write("secret\n")
        report, err = self.load("--target", peer.url + "/v1", "--token", "@" + self.path("key"), *SMALL, "--users", "1",
                                "--count", "2", "--turns", "3", "--shared-prefix", "6", "--body", '{"temperature": 0}')
        self.assertEqual(err, "")
        self.assertEqual((report["answered"], report["answers_without_usage"], report["tokens"]), (6, 6, 12))
        self.assertIn("peer-model at " + peer.url, report["run"]["model"])
        notes = " ".join(self.table(report, "Requests")["notes"])
        self.assertIn("the server did not count the tokens", notes)
        headers, path, third = peer.requests[2]
        self.assertEqual((headers["authorization"], path), ("Bearer secret", "/v1/chat/completions"))
        self.assertEqual([(message["role"]) for message in third["messages"]],
                         ["user", "assistant", "user", "assistant", "user"])
        self.assertEqual(third["messages"][1]["content"], "one two")
        self.assertEqual((third["model"], third["stream"], third["max_tokens"], third["temperature"]),
                         ("peer-model", True, 8, 0))
        self.assertEqual(third["messages"][:1], peer.requests[0][2]["messages"])
        first, second = (peer.requests[i][2]["messages"][0]["content"] for i in (0, 3))
        self.assertEqual(first.split("\n\n")[0], second.split("\n\n")[0])  # the shared prefix
        self.assertEqual(len(first.split("\n\n")[0].split()), 6)
        self.assertNotEqual(first.split("\n\n")[1], second.split("\n\n")[1])

    def test_refusals_are_counted_by_status(self):
        def answer(handler, number):
            if number % 2 == 0:
                handler.refuse(429)
            else:
                handler.stream(content("yes"), *DONE)

        report, _ = self.load("--target", self.peer(answer).url, *SMALL, "--users", "2", "--count", "6", "--turns", "1")
        self.assertEqual((report["requests"], report["answered"], report["refused"]), (6, 3, 3))
        self.assertEqual(report["statuses"], {"429": 3})
        [row] = self.table(report, "Refused and failed")["rows"]
        self.assertEqual([cell.get("text", cell.get("value")) for cell in row], ["429", 3, "refused", "no room"])

    def test_a_server_that_answers_nothing_is_a_failure(self):
        report, err = self.load("--target", self.peer(lambda handler, _: handler.refuse(503)).url, *SMALL, "--users", "1",
                                "--count", "2", "--turns", "5", code=1)
        self.assertEqual((report["requests"], report["refused"]), (2, 2))  # a refusal ends its conversation
        self.assertIn("no request was answered; 503: no room", err)

    def test_errors_and_ends_within_streams_are_failures(self):
        def answer(handler, number):
            if number == 0:
                handler.stream(content("a"), 'data: {"error": {"message": "lost", "type": "server_error"}}\n\n')
            elif number == 1:
                handler.stream(content("a"))
            elif number == 2:
                handler.begin_stream()
                handler.send_piece(content("a"))
                handler.close_connection = True
                handler.connection.shutdown(2)
            elif number == 3:
                handler.send_json(200, {"choices": []})
            elif number == 4:
                handler.send_json(400, {"detail": "max_tokens"})
            else:
                handler.stream(content("a"), *DONE)

        report, _ = self.load("--target", self.peer(answer).url, *SMALL, "--users", "1", "--count", "6", "--turns", "1")
        self.assertEqual((report["answered"], report["failed"], report["refused"]), (1, 5, 0))
        self.assertEqual(report["statuses"], {"400": 1, "broken": 2, "server_error": 1, "stream": 1})

    def test_waiting_for_the_client_counts(self):
        def answer(handler, _):
            time.sleep(0.1)
            handler.stream(content("slow"), *DONE)

        # 20 a second arrive where 10 can be served: the wait grows, though each answer takes 0.1 s.
        report, _ = self.load("--target", self.peer(answer).url, "--rate", "20", "--max-concurrency", "1", "--warm-up", "0",
                              "--duration", "2", "--drain", "0.5", "--turns", "1", "--seed", "3", "--prompt-words", "2")
        self.assertGreater(report["requests"], 20)
        self.assertGreater(report["unfinished"], 0)  # those that waited to be sent to the end
        self.assertGreater(report["late_ms"]["most"], 500)
        self.assertGreater(report["ttft_ms"]["most"], 600)

    def test_requests_without_an_end_are_cancelled_and_counted(self):
        def answer(handler, number):
            handler.begin_stream()
            handler.send_piece(content("begins"))
            if number > 0:
                handler.connection.recv(1)  # until the client is gone
            else:
                for piece in (*DONE, ""):
                    handler.send_piece(piece)

        report, _ = self.load("--target", self.peer(answer).url, "--users", "2", "--turns", "1", "--warm-up", "0",
                              "--duration", "2", "--drain", "0.2", "--prompt-words", "2")
        self.assertEqual((report["answered"], report["unfinished"], report["failed"]), (1, 2, 0))
        self.assertGreater(report["ttft_ms"]["p50"], 0)

    def test_ctrl_c_ends_requests_that_stall(self):
        def answer(handler, _):
            handler.begin_stream()
            handler.connection.recv(1)

        peer = self.peer(answer)
        process = begin("--target", peer.url, "--users", "3", "--turns", "1", "--warm-up", "0", "--duration", "300")
        end = time.monotonic() + 60
        while len(peer.requests) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("| 3 users |", out)
        self.assertIn("no request was answered; it was interrupted", err)

    def test_progress_is_shown_on_a_terminal_alone(self):
        peer = self.peer(lambda handler, _: (time.sleep(0.3), handler.stream(content("slow"), *DONE)))
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        process = begin("--target", peer.url, *SMALL, "--users", "1", "--count", "2", "--turns", "1", stderr=theirs)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertIn("### Times", out)
        shown = os.read(ours, 65536).decode()
        self.assertIn("/120 s, ", shown)
        self.assertIn("1 running", shown)


if __name__ == "__main__":
    unittest.main()
