# SPDX-License-Identifier: Apache-2.0
"""docker/kubernetes as documents, the way `kubectl kustomize` builds them.

Knows what these files use of kustomize: resources, a ConfigMap made of files or of NAME=VALUE lines, JSON
patches, replacements by a value of a ConfigMap. The hash that kustomize appends to a ConfigMap's name is left out.
"""

import copy
import os

import yaml

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
KUBERNETES = os.path.join(ROOT, "docker", "kubernetes")
VARIANTS = ("base", "tls", "hub", "shared-store", "embedded-store")


def load_all(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


def load(path):
    (document,) = load_all(path)
    return document


def render(directory):
    """The documents of a directory with a kustomization.yaml."""
    known = {"apiVersion", "kind", "resources", "configMapGenerator", "patches", "replacements"}
    kustomization = load(os.path.join(directory, "kustomization.yaml"))
    assert set(kustomization) <= known, f"kustomization.yaml: unknown {set(kustomization) - known}"
    documents = []
    for resource in kustomization["resources"]:
        path = os.path.normpath(os.path.join(directory, resource))
        documents += render(path) if os.path.isdir(path) else load_all(path)
    for generator in kustomization.get("configMapGenerator", []):
        _generate_config_map(documents, directory, generator)
    for entry in kustomization.get("patches", []):
        matches = [document for document in documents if _is_target(document, entry["target"])]
        assert matches, f"nothing to patch: {entry['target']}"
        for document in matches:
            for operation in load(os.path.join(directory, entry["path"])):
                _apply(document, operation)
    for replacement in kustomization.get("replacements", []):
        _replace(documents, replacement)
    return documents


def one(documents, kind, name="lintel"):
    """The only document of a kind and name."""
    (document,) = [document for document in documents
                   if document["kind"] == kind and document["metadata"]["name"] == name]
    return document


def _generate_config_map(documents, directory, generator):
    data = {}
    for name in generator.get("files", []):
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            data[name] = file.read()
    for name in generator.get("envs", []):
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            data |= dict(line.split("=", 1) for line in file.read().splitlines()
                         if line and not line.startswith("#"))
    existing = [document for document in documents if document["kind"] == "ConfigMap"
                and document["metadata"]["name"] == generator["name"]]
    if generator.get("behavior", "create") == "create":
        assert not existing, f"ConfigMap {generator['name']} is there already"
        documents.append({"apiVersion": "v1", "kind": "ConfigMap",
                          "metadata": {"name": generator["name"]}, "data": data})
    else:
        assert generator["behavior"] == "replace" and existing
        existing[0]["data"] = data


def _is_target(document, target):
    group, _, version = document["apiVersion"].rpartition("/")
    return (group == target["group"] and version == target["version"]
            and document["kind"] == target["kind"]
            and document["metadata"]["name"] == target["name"])


def _apply(document, operation):
    """RFC 6902's `add` to the end of a list or of a new member, `replace` and `remove`."""
    removes = operation["op"] == "remove"
    assert set(operation) == {"op", "path"} | (set() if removes else {"value"}), operation
    *way, last = operation["path"].removeprefix("/").split("/")
    at = document
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if operation["op"] == "add" and last == "-":
        at.append(copy.deepcopy(operation["value"]))
    elif operation["op"] == "add":
        assert last not in at, operation
        at[last] = copy.deepcopy(operation["value"])
    elif removes:
        del at[last]
    else:
        assert operation["op"] == "replace" and last in at, operation
        at[last] = copy.deepcopy(operation["value"])


def _replace(documents, replacement):
    """Copies one field to others; a path has members of objects, and [name=...] of lists."""
    source = replacement["source"]
    value = one(documents, source["kind"], source["name"])
    for step in source["fieldPath"].split("."):
        value = value[step]
    for target in replacement["targets"]:
        document = one(documents, target["select"]["kind"], target["select"]["name"])
        for path in target["fieldPaths"]:
            *way, last = path.split(".")
            at = document
            for step in way:
                if step.startswith("["):
                    name = step.removeprefix("[name=").removesuffix("]")
                    (at,) = [element for element in at if element["name"] == name]
                else:
                    at = at[step]
            assert last in at, path
            at[last] = value
