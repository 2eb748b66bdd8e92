"""The image's bill of materials, as SPDX 2.3 in JSON: every file with its hashes, the Debian package that it is of,
and the libraries that are compiled in from headers.
"""

import hashlib
import json
import subprocess
import time
from typing import Any, Dict, List

from root_files import OURS, File, RootFiles

# Header-only or static: no file of theirs is in the image.
COMPILED_IN = ("libboost1.81-dev", "libeigen3-dev", "nlohmann-json3-dev")
PATH = "usr/share/aludel/sbom.spdx.json"


def content(file: File) -> bytes:
    return file.source.read_bytes() if file.source is not None else (file.text or "").encode()


def _id(text: str) -> str:
    return "SPDXRef-" + "".join(one if one.isalnum() or one in ".-" else "-" for one in text)


def _debian(name: str, version: str, architecture: str, source: str) -> Dict[str, Any]:
    """A package as SPDX has it. What licenses its parts have stands in its copyright file, which is in the image."""
    return {"SPDXID": _id(f"Package-{name}"), "name": name, "versionInfo": version, "supplier": "Organization: Debian",
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "sourceInfo": f"built from Debian's source package {source}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}"
                                                  f"?arch={architecture}"}]}


def _compiled_in() -> List[Dict[str, Any]]:
    found = []
    for name in COMPILED_IN:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version} ${Architecture} ${source:Package}", name],
                              capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip():
            found.append(_debian(name, *done.stdout.split()))
    return found


def bill_of(root: RootFiles, epoch: int) -> str:
    files, relations = [], [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                             "relatedSpdxElement": _id(f"Package-{OURS}")}]
    for file in sorted(root.files.values(), key=lambda one: one.path):
        if file.source is None:
            continue
        data = content(file)
        files.append({"SPDXID": _id(f"File-{file.path}"), "fileName": f"./{file.path}",
                      "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                                    {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
                      "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
                      "copyrightText": "NOASSERTION"})
        relations.append({"spdxElementId": _id(f"Package-{file.package.split(':')[0]}"), "relationshipType": "CONTAINS",
                          "relatedSpdxElement": files[-1]["SPDXID"]})
    ours = _id(f"Package-{OURS}")
    packages = [{"SPDXID": ours, "name": OURS, "versionInfo": root.version,
                 "supplier": "Organization: The Aludel authors",
                 "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "Apache-2.0",
                 "licenseDeclared": "Apache-2.0", "copyrightText": "2026 The Aludel authors"}]
    for one in sorted(root.packages.values(), key=lambda one: one.name):
        packages.append(_debian(one.name, one.version, one.architecture, one.source))
        relations.append({"spdxElementId": ours, "relationshipType": "DYNAMIC_LINK",
                          "relatedSpdxElement": packages[-1]["SPDXID"]})
    for one in _compiled_in():
        packages.append(one)
        relations.append({"spdxElementId": ours, "relationshipType": "STATIC_LINK",
                          "relatedSpdxElement": one["SPDXID"]})
    body = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"{OURS}-{root.version}",
            "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                             "creators": ["Organization: The Aludel authors", "Tool: deploy-image-sbom"]},
            "packages": packages, "files": files, "relationships": relations}
    # A name of its own for every content, as SPDX asks, and the same for the same.
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "documentNamespace": f"https://aludel.invalid/spdx/{OURS}-{root.version}-{digest}"},
                      indent=1) + "\n"
