#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what is made from the table of request fields: keywords of Python, types of Node, fields of the page, tables of the docs.

The table is proto/fields/request_fields.h; `lintel-server --print-fields` writes it as JSON. What is made is
committed: files of their own, and regions of others between two lines.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import textwrap

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PYTHON = "client/python/lintel/_request.py"
PYTHON_CHAT = "client/python/lintel/_chat_request.py"
NODE = "client/node/lintel.d.mts"


def range_text(row):
    if row["type"] == "flag":
        return "true, false"
    if "values" in row:
        return row["values"]
    if "low" not in row:
        return {"count": "0 and more", "position": "0 and more"}.get(row["type"], "")
    low, high = f"{row['low']:g}", f"{row['high']:g}"
    return f"more than {low}, at most {high}" if row["is_above_low"] else f"{low} to {high}"


def read_by(api, rows):
    """The fields that an API reads by the table."""
    return [row for row in rows if api in row and api not in row["by_hand"]]


def last(row):
    """The name within the message that the field is in."""
    return row["name"].split(".")[-1]


# Python.

def keyword(row):
    kinds = {"count": "int", "position": "int", "seed": "int", "number": "float", "flag": "bool",
             "biases": "Mapping[int, float]"}
    if row["type"] == "text":
        return f'{row["python"]}: str = ""'
    kind = kinds[row["type"]]
    if row["optional"] or row["type"] == "biases":
        return f'{row["python"]}: Optional[{kind}] = None'
    return f'{row["python"]}: {kind} = {"False" if kind == "bool" else 0}'


def python_signature(rows):
    return [f"        {keyword(row)}," for row in read_by("python", rows)]


def python_docstring(rows):
    return wrapped((row["python"], row) for row in read_by("python", rows))


def wrapped(named_rows):
    lines = []
    for name, row in named_rows:
        text = f"{name}: {row['help']}"
        if "default" in row:
            text += f" [{row['default']}]"
        lines += textwrap.wrap(text, 108, initial_indent=" " * 8, subsequent_indent=" " * 12)
    return lines


def python_request(rows):
    named = read_by("python", rows)
    # The constructor's types have no flag that may be None.
    flags = [row for row in named if row["type"] == "flag" and row["optional"]]
    own = [row for row in named if "." not in row["name"] and row not in flags]
    nested = [(message, [row for row in named if row["name"].startswith(message.lower() + ".")])
              for message in ("Sampling", "Stop")]
    assert len(own) + len(flags) + sum(len(rows) for _, rows in nested) == len(named), (
        "of other messages no request is written")
    return (["        request = pb.GenerateRequest("]
            + [f"            {last(row)}={row['python']}," for row in own]
            + [line for message, rows in nested
               for line in ([f"            {message.lower()}=pb.{message}("]
                            + [f"                {last(row)}={row['python']}," for row in rows]
                            + ["            ),"])]
            + ["        )"]
            + [line for row in flags
               for line in (f"        if {row['python']} is not None:",
                            f"            request.{row['name']} = {row['python']}")])


# Python's chat() and respond(), whose keywords are the members of the bodies.

def member_keyword(row, api):
    kinds = {"count": "int", "position": "int", "seed": "int", "number": "float", "flag": "bool", "text": "str",
             "biases": "Mapping[int, float]", "texts": "Union[str, Iterable[str]]", "tokens": "Iterable[int]"}
    return f"        {row[api]}: Optional[{kinds[row['type']]}] = None,"


def member(row, api):
    value = f"_list({row[api]})" if row["type"] in ("texts", "tokens") else row[api]
    return f'            "{row[api]}": {value},'


def chat_docstring(rows):
    return wrapped((row["chat"], row) for row in read_by("chat", rows))


# The page.

def camel(name):
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# Node's types. A message has 64-bit numbers in any form, JSON those that it can write.

def node_member(name, row, is_message):
    whole = "Int64" if is_message else "number | bigint"
    kinds = {"count": "number", "position": whole, "seed": whole, "number": "number", "flag": "boolean",
             "text": "string", "seconds": "Duration", "biases": "{ [token: number]: number }",
             "tokens": "readonly number[]",
             "texts": "readonly (string | Uint8Array)[]" if is_message else "string | readonly string[]"}
    default = f" [{row['default']}]" if "default" in row else ""
    comment = textwrap.wrap(f"{row['help']}{default}", 110)
    lines = [f"  /** {comment[0]} */"] if len(comment) == 1 else ["  /**", *(f"   * {line}" for line in comment), "   */"]
    return [*lines, f"  {camel(name)}?: {kinds[row['type']]};"]


def node_message(rows, message):
    """The fields of a message that is in a GenerateRequest, or with an empty name of that itself."""
    own = [row for row in rows if row["name"].rpartition(".")[0] == message and row["type"] not in ("values", "spans")]
    return [line for row in own for line in node_member(last(row), row, True)]


def node_body(rows, api):
    return [line for row in read_by(api, rows) for line in node_member(row[api], row, False)]


def number(value):
    return int(value) if value == int(value) else value


# Types of fields that the page has an input for.
PAGE_TYPES = ("count", "position", "number", "flag", "text")


def page_module(rows):
    lines = ["// SPDX-License-Identifier: Apache-2.0",
             "// The fields of lintel.v1.GenerateRequest that the page has, each with the message that it is in ('': the",
             "// request itself). Made by scripts/fields.py.",
             "export const requestFields = ["]
    for row in read_by("page", rows):
        assert row["type"] in PAGE_TYPES, f"{row['name']}: the page has no input for the type {row['type']}"
        assert row["type"] != "flag" or not row["optional"], f"{row['name']}: a check box cannot leave it out"
        message, _, name = row["name"].rpartition(".")
        entry = {"message": camel(message), "name": camel(name), "type": row["type"], "label": row["page"],
                 "default": row.get("default", ""), "help": row["help"]}
        if row["type"] in ("count", "position", "number"):
            entry["low"] = number(row.get("low", 0))
            entry["isAboveLow"] = row.get("is_above_low", False)
        if "high" in row:
            entry["high"] = number(row["high"])
        items = [f"{key}: " + ("'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else json.dumps(value))
                 for key, value in entry.items()]
        lines += ["  {"] + [f"    {item}," for item in items] + ["  },"]
    return lines + ["];"]


# The documentation.

def table(rows, api):
    lines = ["| name | range | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        if api in row:
            cells = [f"`{row[api]}`", range_text(row), row.get("default", ""), row["help"]]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


# File, what the line before the region and the line after it have, what is between them.
END = "end of fields"
REGIONS = [
    (PYTHON, "fields: keywords", END, python_signature),
    (PYTHON, "their defaults in brackets:\n", '"""', lambda rows: [""] + python_docstring(rows)),
    (PYTHON, "fields: request", END, python_request),
    (PYTHON_CHAT, "fields: chat keywords", END, lambda rows: [member_keyword(row, "chat") for row in read_by("chat", rows)]),
    (PYTHON_CHAT, "checkpoint may change:\n", '"""', lambda rows: [""] + chat_docstring(rows)),
    (PYTHON_CHAT, "fields: chat members", END, lambda rows: [member(row, "chat") for row in read_by("chat", rows)]),
    (PYTHON_CHAT, "fields: responses keywords", END,
     lambda rows: [member_keyword(row, "responses") for row in read_by("responses", rows)]),
    (PYTHON_CHAT, "fields: responses members", END,
     lambda rows: [member(row, "responses") for row in read_by("responses", rows)]),
    (NODE, "fields: sampling of types", END, lambda rows: node_message(rows, "sampling")),
    (NODE, "fields: stop of types", END, lambda rows: node_message(rows, "stop")),
    (NODE, "fields: generation of types", END, lambda rows: node_message(rows, "")),
    (NODE, "fields: chat of types", END, lambda rows: node_body(rows, "chat")),
    (NODE, "fields: responses of types", END, lambda rows: node_body(rows, "responses")),
    ("docs/http_openai.md", "fields: completions", END, lambda rows: table(rows, "completions")),
    ("docs/chat.md", "fields: chat", END, lambda rows: table(read_by("chat", rows), "chat")),
    ("proto/README.md", "fields: kserve", END, lambda rows: table(rows, "kserve")),
]
FILES = {"web/js/fields.js": page_module}


def replaced(path, text, before, after, lines):
    """The text with other lines between the one that has `before` and the next that has `after`."""
    at = text.find(before)
    begin = text.find("\n", at) + 1
    end = text.rfind("\n", 0, max(text.find(after, begin), 0)) + 1
    if at < 0 or end < begin:
        sys.exit(f"fields.py: {path} has no line with {before!r} and one with {after!r} after it")
    return text[:begin] + "\n".join(lines) + "\n" + text[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 where something is not up to date")
    parser.add_argument("server", metavar="LINTEL_SERVER", help="the program that was built of this tree")
    arguments = parser.parse_args()
    rows = json.loads(subprocess.run([arguments.server, "--print-fields"], check=True, capture_output=True).stdout)
    texts = {}
    for path, before, after, make in REGIONS:
        text = texts.get(path) or (REPOSITORY / path).read_text()
        texts[path] = replaced(path, text, before, after, make(rows))
    for path, make in FILES.items():
        texts[path] = "\n".join(make(rows)) + "\n"
    status = 0
    for path, text in texts.items():
        file = REPOSITORY / path
        if file.is_file() and file.read_text() == text:
            continue
        if arguments.check:
            print(f"{path} is not what the table of fields makes: run scripts/fields.py", file=sys.stderr)
            status = 1
        else:
            file.write_text(text)
            print(path)
    return status


if __name__ == "__main__":
    sys.exit(main())
