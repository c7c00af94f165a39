#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a software bill of materials (SPDX 2.3, JSON) of the archive: Lintel, and the Debian packages whose libraries
it carries or whose scripts are embedded in the web page of lintel-server.

  scripts/carry_libraries.sh TREE | scripts/sbom.py --name lintel-0.3.0-linux-amd64 --version 0.3.0 >FILE

Reads lines "PACKAGE VERSION LIBRARY...". The time is $SOURCE_DATE_EPOCH, so that the same archive has the same file.
Licences stand in the archive's own share/doc/lintel/libraries, whole; here they are not asserted.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys

# Debian packages that are read when the server is built, and the files of its page that they become.
EMBEDDED = {"libjs-marked": "lib/marked.js", "node-dompurify": "lib/purify.js"}


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def package(name: str, version: str, spdx_id: str, license_declared: str, purl: str) -> dict:
    return {
        "name": name,
        "SPDXID": spdx_id,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license_declared,
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the archive")
    parser.add_argument("--version", required=True, help="of Lintel")
    arguments = parser.parse_args()
    lines = sys.stdin.read().splitlines()
    with open("/etc/os-release", encoding="utf-8") as release:
        distribution = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', release.read(), re.MULTILINE))
    distro = f"{distribution.get('ID', 'linux')}-{distribution.get('VERSION_ID', '')}"
    architecture = output_of("dpkg", "--print-architecture")
    packages = [package("lintel", arguments.version, "SPDXRef-lintel", "Apache-2.0",
                        f"pkg:generic/lintel@{arguments.version}")]
    relationships = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                      "relatedSpdxElement": "SPDXRef-lintel"}]

    def add(name: str, version: str, arch: str, comment: str, relationship: str) -> None:
        spdx_id = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)
        purl = f"pkg:deb/{distribution.get('ID', 'debian')}/{name}@{version}?arch={arch}&distro={distro}"
        packages.append(package(name, version, spdx_id, "NOASSERTION", purl) | {"comment": comment})
        relationships.append({"spdxElementId": "SPDXRef-lintel", "relationshipType": relationship,
                              "relatedSpdxElement": spdx_id})

    for line in lines:
        name, version, *libraries = line.split()
        add(name, version, architecture, "lib/lintel: " + " ".join(sorted(libraries)), "DYNAMIC_LINK")
    for name, file in EMBEDDED.items():
        version, arch = output_of("dpkg-query", "-W", "-f", "${Version} ${Architecture}", name).split()
        lines.append(f"{name} {version}")  # of the digest below
        add(name, version, arch, f"embedded in lintel-server: {file} of its page", "CONTAINS")
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    json.dump({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": arguments.name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{arguments.name}-{digest}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: lintel-sbom"]},
        "packages": packages,
        "relationships": relationships,
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
