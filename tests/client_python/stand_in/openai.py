# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the package openai where that is not installed, as on Debian 12: the calls of docs/python.md.

It sends the same requests, and its answers have the same members, without types and without retries.
"""

import json
import urllib.error
import urllib.request


class Record(dict):
    """A JSON object whose members are attributes; of a message those that may be missing are None."""

    def __getattr__(self, name):
        if name in ("content", "tool_calls"):
            return self.get(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def output_text(self):
        return "".join(part.text for item in self.output if item.type == "message" for part in item.content)


class BadRequestError(Exception):
    """A request that was refused."""


class OpenAI:
    def __init__(self, base_url, api_key):
        def create(path):
            return lambda extra_body=None, **members: post(base_url + path, api_key, {**members, **(extra_body or {})})
        self.chat = Record(completions=Record(create=create("/chat/completions")))
        self.responses = Record(create=create("/responses"))


def post(url, key, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "content-type": "application/json", "authorization": f"Bearer {key}"})
    try:
        answer = urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        with error:
            raise BadRequestError(error.read().decode()) from None
    if body.get("stream"):
        return events(answer)
    with answer:
        return json.load(answer, object_hook=Record)


def events(answer):
    with answer:
        for line in answer:
            data = line.decode().partition("data: ")[2].strip()
            if line.startswith(b"data: ") and data != "[DONE]":
                yield json.loads(data, object_hook=Record)
