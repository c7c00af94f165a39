#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chats over OpenAI's API: a long conversation across kill -9, and many conversations at once.

scripts/chat_demo.sh builds the server and calls this.
"""

import argparse
import concurrent.futures
import dataclasses
import http.client
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from restart_turn import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = ROOT / "weights/text-rwkv7-small"
WORDS = ("the king of france shall come to us this night and speak with thee my lord good morrow what news from rome "
         "he is not dead but sleeps in peace where all men must lie down at last").split()


def say(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Answer:
    text: str
    first_ms: float  # from the request to the first text
    prompt: int
    cached: int
    new: int


class Server:
    """A lintel-server of one model on two workers, which stores each turn at its end."""

    def __init__(self, arguments: argparse.Namespace, model: pathlib.Path, store: pathlib.Path) -> None:
        self.port, metrics = free_port(), free_port()
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        command = [str(arguments.server), "--model", f"m={model}", "--listen", "127.0.0.1:0", "--workers", "2",
                   "--http-listen", f"127.0.0.1:{self.port}", "--metrics-listen", f"127.0.0.1:{metrics}",
                   "--session-memory", "4GiB", "--prefix-cache-memory", "2GiB", "--log-level", "warning",
                   "--session-store", str(store), "--chat-spill", "--chat-spill-idle", "0s", *arguments.server_flag]
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("lintel-server ready on "):
            raise SystemExit("chat_demo.py: the server does not start")
        self.address = ready.split()[-1]
        self.start_ms = 1e3 * (time.monotonic() - begin)

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait()
        self.process.stdout.close()

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.metrics) as page:
            text = page.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def wait_until_stored(self, turns: int) -> None:
        """Until so many turns are in the store: they are written after their answers have ended."""
        deadline = time.monotonic() + 10
        while self.metric("lintel_chat_states_spilled_total") < turns:
            if time.monotonic() > deadline:
                raise SystemExit("chat_demo.py: a turn is not stored within ten seconds")
            time.sleep(0.02)

    def chat(self, messages: list[dict], max_tokens: int, seed: int) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        body = {"model": "m", "messages": messages, "max_tokens": max_tokens, "seed": seed, "stream": True,
                "stream_options": {"include_usage": True}}
        begin = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"chat_demo.py: {answer.read().decode()}")
        text, first, usage = "", None, {}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len("data: "):])
            if "error" in event:
                raise SystemExit(f"chat_demo.py: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and first is None:
                    first = time.monotonic()
                text += piece
        connection.close()
        return Answer(text, 1e3 * ((first or time.monotonic()) - begin), usage["prompt_tokens"],
                      usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])


def speech(draw: random.Random, words: int) -> dict:
    return {"role": "user", "content": " ".join(draw.choice(WORDS) for _ in range(words))}


def across_restarts(arguments: argparse.Namespace, model: pathlib.Path, store: pathlib.Path) -> dict:
    """A conversation that grows to so many tokens; then kill -9, a restart and two turns, several times."""
    draw = random.Random(arguments.seed)
    messages: list[dict] = []
    server = Server(arguments, model, store)
    turns = 0  # of this server

    def turn(words: int) -> Answer:
        nonlocal turns
        turns += 1
        messages.append(speech(draw, words))
        answer = server.chat(messages, arguments.new_tokens, arguments.seed)
        messages.append({"role": "assistant", "content": answer.text})
        return answer

    try:
        answer = turn(50)
        while answer.prompt + answer.new < arguments.tokens:
            say(f"the conversation has {answer.prompt + answer.new} of {arguments.tokens} tokens")
            answer = turn(300)
        after, again, starts = [], [], []
        for number in range(arguments.restarts):
            say(f"kill -9 and restart {number + 1} of {arguments.restarts}")
            server.wait_until_stored(turns)
            server.end(signal.SIGKILL)
            server, turns = Server(arguments, model, store), 0
            starts.append(server.start_ms)
            after.append(turn(5))
            again.append(turn(5))
        # A history with another beginning has no state: all of it is read.
        say("reading the history once more")
        unread = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes."}, *messages, speech(draw, 5)]
        full = server.chat(unread, 1, arguments.seed)
        peer = {}
        if arguments.peer_root:
            say("the same in llama.cpp")
            peer = in_llama_cpp(arguments, server.address, messages, [*messages, speech(draw, 5)])
    finally:
        server.end(signal.SIGKILL)
    return {
        "tokens": again[-1].prompt + again[-1].new,
        "turns": len(messages) // 2,
        "restart_ms": round(statistics.median(starts)),
        "first_token_after_restart_ms": round(statistics.median(each.first_ms for each in after), 1),
        "read_after_restart": [each.prompt - each.cached for each in after],
        "first_token_in_memory_ms": round(statistics.median(each.first_ms for each in again), 1),
        "read_in_memory": [each.prompt - each.cached for each in again],
        "first_token_reading_all_ms": round(full.first_ms, 1),
        "read_reading_all": full.prompt - full.cached,
        "stored_bytes": sum(512 * path.stat().st_blocks for path in store.rglob("*") if path.is_file()),
        "last_answer": again[-1].text,
        "llama_cpp": peer,
    }


def in_llama_cpp(arguments: argparse.Namespace, address: str, history: list[dict], longer: list[dict]) -> dict:
    """The measurements of scripts/chat_demo_peer.mjs for the same token ids."""
    ids = []
    for messages in (history, longer):
        request = {"model": "m", "messages": messages, "add_generation_prompt": messages is longer}
        ids.append(json.loads(subprocess.run(
            [str(arguments.server.with_name("lintel")), "chat", "--address", address, "--render", "-", "--render-ids"],
            input=json.dumps(request), check=True, capture_output=True, text=True).stdout))
    command = ["node", str(ROOT / "scripts/chat_demo_peer.mjs"), str(arguments.peer_root), str(arguments.model)]
    return json.loads(subprocess.run(command, input=json.dumps(ids), check=True, stdout=subprocess.PIPE, text=True).stdout)


def many_at_once(arguments: argparse.Namespace, model: pathlib.Path, store: pathlib.Path) -> dict:
    """Conversations with histories of their own, and one that continues in several ways; all answers at once."""
    draw = random.Random(arguments.seed)
    own = arguments.conversations - arguments.forks
    if own < 0:
        raise SystemExit("chat_demo.py: --forks is above --conversations")
    histories = [[speech(draw, 100)] for _ in range(own)] + [[speech(draw, 1000)]]
    server = Server(arguments, model, store)

    def answer_all(conversations: list[list[dict]]) -> tuple[list[Answer], float]:
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(conversations)) as pool:
            answers = list(pool.map(lambda item: server.chat(item[1], arguments.new_tokens, item[0]),
                                    enumerate(conversations)))
        return answers, time.monotonic() - begin

    try:
        say(f"first turns of {len(histories)} conversations")
        answers, _ = answer_all(histories)
        for history, answer in zip(histories, answers):
            history.append({"role": "assistant", "content": answer.text})
        cache_bytes = server.metric("lintel_prefix_cache_bytes")
        say(f"next turns of {arguments.conversations} conversations")
        histories = histories[:own] + [list(histories[own]) for _ in range(arguments.forks)]
        for history in histories:
            history.append(speech(draw, 20))
        answers, seconds = answer_all(histories)
    finally:
        server.end(signal.SIGKILL)
    return {
        "conversations": arguments.conversations, "forks": arguments.forks,
        "new_tokens": sum(each.new for each in answers),
        "tokens_per_second": round(sum(each.new for each in answers) / seconds),
        "first_token_ms": round(statistics.median(each.first_ms for each in answers), 1),
        "bytes_per_conversation": round(cache_bytes / (own + 1)),
        "own": [{"prompt": each.prompt, "cached": each.cached} for each in answers[:own]],
        "forked": [{"prompt": each.prompt, "cached": each.cached} for each in answers[own:]],
    }


def with_tokenizer(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The model; where it has no tokenizer, a directory of it with the small model's, whose vocabulary is filled up."""
    if model.is_file() or (model / "tokenizer.json").exists() or (model / "rwkv_vocab_v20230424.txt").exists():
        return model
    folder.mkdir()
    for path in [*model.iterdir(), SMALL / "chat_template.jinja"]:
        os.symlink(path.resolve(), folder / path.name)
    tokenizer = json.loads((SMALL / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    vocabulary.update({f"[{token}]": token for token in range(len(vocabulary), size)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def least_and_most(rows: list[dict], name: str) -> str:
    values = [row[name] for row in rows]
    return f"{min(values)} to {max(values)}" if rows else "-"


def peer_rows(peer: dict) -> list[str]:
    if not peer:
        return []
    return [f"| llama.cpp in a new process, without a state | {peer['reading_all_ms']:.1f} | {peer['prompt']} |",
            f"| llama.cpp in a new process, its state from a file of {peer['file_bytes']:,} bytes "
            f"| {peer['from_file_ms']:.1f} | {peer['new']} |"]


def table(result: dict) -> str:
    long, many = result["long"], result["many"]
    weights = "random weights: the text means nothing" if result["random_weights"] else "trained"
    lines = [
        f"{result['model']} ({weights}), 2 workers", "",
        f"| a conversation of {long['tokens']:,} tokens, {long['turns']} turns | first token, ms | tokens read |",
        "|---|---:|---:|",
        f"| next turn, in memory | {long['first_token_in_memory_ms']} | {max(long['read_in_memory'])} |",
        f"| next turn, after kill -9 and a restart of {long['restart_ms']} ms | {long['first_token_after_restart_ms']} "
        f"| {max(long['read_after_restart'])} |",
        f"| without a state | {long['first_token_reading_all_ms']} | {long['read_reading_all']} |",
        *peer_rows(long["llama_cpp"]), "",
        f"| {many['conversations']} conversations at once, {many['forks']} of them forks of one | |", "|---|---:|",
        f"| tokens/s | {many['tokens_per_second']:,} |",
        f"| first token, ms, median | {many['first_token_ms']} |",
        f"| bytes of states per conversation | {many['bytes_per_conversation']:,} |",
        f"| tokens of a prompt: own, forked | {least_and_most(many['own'], 'prompt')}, {least_and_most(many['forked'], 'prompt')} |",
        f"| of these not read again | {least_and_most(many['own'], 'cached')}, {least_and_most(many['forked'], 'cached')} |",
    ]
    if not result["random_weights"]:
        lines += ["", "The last answer:", "", *("    " + line for line in long["last_answer"].splitlines())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=SMALL)
    parser.add_argument("--random", action="store_true", help="the weights are random")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--forks", type=int, default=10)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-flag", action="append", default=[], help="one more word for lintel-server")
    parser.add_argument("--peer-root", type=pathlib.Path, help="where npm's node-llama-cpp is; --model is a GGUF file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.peer_root and arguments.model.suffix != ".gguf":
        parser.error("--peer-root needs a --model that llama.cpp reads, a GGUF file")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = with_tokenizer(arguments.model, folder / "model")
        result = {"model": arguments.model.name, "random_weights": arguments.random,
                  "long": across_restarts(arguments, model, folder / "long"),
                  "many": many_at_once(arguments, model, folder / "many")}
    say("")
    print(json.dumps(result, indent=1) if arguments.json else table(result))


if __name__ == "__main__":
    main()
