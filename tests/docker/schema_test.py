# SPDX-License-Identifier: Apache-2.0
"""Every field of the manifests is known to the Kubernetes API and has its type.

Writes them as TypeScript literals of the types that kubernetes-types has from the API's OpenAPI
description: the compiler refuses unknown fields, wrong types and missing ones. Needs
schema/node_modules (npm ci in schema/).
"""

import copy
import json
import os
import subprocess
import tempfile
import unittest

import manifests

SCHEMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema")
# The modules in which kubernetes-types has a kind's type, by its apiVersion.
MODULES = {"v1": "core/v1", "apps/v1": "apps/v1", "autoscaling/v2": "autoscaling/v2",
           "policy/v1": "policy/v1", "networking.k8s.io/v1": "networking/v1"}


def complaints(documents):
    """The compiler's errors about the documents; empty: there are none."""
    lines = []
    for i, document in enumerate(documents):
        kind = document["kind"]
        module = MODULES[document["apiVersion"]]
        lines.append(f'import {{ {kind} as Kind{i} }} from "kubernetes-types/{module}";')
        lines.append(f"export const document{i}: Kind{i} = {json.dumps(document, indent=1)};")
    # Beside node_modules, where the compiler looks for the types.
    with tempfile.TemporaryDirectory(dir=SCHEMA, prefix="check-") as directory:
        source = os.path.join(directory, "manifests.ts")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        done = subprocess.run(["npm", "run", "--silent", "check", "--", source], cwd=SCHEMA,
                              capture_output=True, text=True, check=False)
    if done.returncode != 0 and not done.stdout:
        raise RuntimeError(done.stderr)
    return done.stdout


class SchemaTest(unittest.TestCase):
    def test_the_api_knows_every_field(self):
        for variant in (*manifests.VARIANTS, "monitoring"):
            with self.subTest(variant):
                documents = manifests.render(os.path.join(manifests.KUBERNETES, variant))
                # The Prometheus Operator's objects are not of the API itself.
                ours = [document for document in documents
                        if not document["apiVersion"].startswith("monitoring.coreos.com/")]
                self.assertEqual(complaints(ours), "")

    def test_unknown_and_ill_typed_fields_are_refused(self):
        documents = manifests.render(os.path.join(manifests.KUBERNETES, "base"))

        def container(all_documents):
            return manifests.one(all_documents, "Deployment")["spec"]["template"]["spec"][
                "containers"][0]

        def misspell(all_documents):
            container(all_documents)["livenesProbe"] = {}

        def ill_type(all_documents):
            container(all_documents)["startupProbe"]["periodSeconds"] = "2s"

        def leave_out(all_documents):
            del manifests.one(all_documents, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]

        for change, complaint in (
                (misspell, "\"livenesProbe\"' does not exist in type 'Container'"),
                (ill_type, "Type 'string' is not assignable to type 'number'"),
                (leave_out, "Property 'scaleTargetRef' is missing")):
            with self.subTest(complaint):
                changed = copy.deepcopy(documents)
                change(changed)
                self.assertIn(complaint, complaints(changed))


if __name__ == "__main__":
    unittest.main()
