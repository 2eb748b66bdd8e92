"""Every object that deploy/kubernetes renders, held against the Kubernetes API of npm's kubernetes-models: its JSON
schemas find wrong values and missing fields, and its TypeScript types find fields that do not exist.

    schema_test.py --build build/release/tests/deploy

Exits with 77 and a reason where node, npm, python3-jsonschema or what renders the overlays is missing, or npm reaches
no registry.
"""

import argparse
import copy
import json
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Dict, List

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from kustomize import OVERLAYS, render, why_not  # noqa: E402

MODULES = {api: f"@kubernetes-models/{package}/{api}" for package, api in [
    ("cert-manager", "cert-manager.io/v1"), ("gateway-api", "gateway.networking.k8s.io/v1"),
    ("keda", "keda.sh/v1alpha1"),
    ("prometheus-operator", "monitoring.coreos.com/v1")]}
# npm has no types for the inference extension: what we use of its InferencePool.
INFERENCE_POOL = {
    "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"], "additionalProperties": False,
    "properties": {"apiVersion": {}, "kind": {"const": "InferencePool"}, "metadata": {"type": "object"}, "spec": {
        "type": "object", "required": ["selector", "targetPorts", "endpointPickerRef"], "additionalProperties": False,
        "properties": {
            "selector": {"type": "object", "required": ["matchLabels"], "additionalProperties": False,
                         "properties": {"matchLabels": {"type": "object", "minProperties": 1}}},
            "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": {
                "type": "object", "required": ["number"], "additionalProperties": False,
                "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 65535}}}},
            "endpointPickerRef": {"type": "object", "required": ["name"], "additionalProperties": False, "properties": {
                "group": {"type": "string"}, "kind": {"type": "string"}, "name": {"type": "string", "minLength": 1},
                "port": {"type": "object", "required": ["number"], "properties": {"number": {"type": "integer"}}},
                "failureMode": {"enum": ["FailOpen", "FailClose"]}}}}}}}
folder = Path()


def faults(objects: List[Dict[str, Any]]) -> str:
    """What schemas and types say against the objects; empty where nothing."""
    import jsonschema
    for one in objects:
        if one["kind"] == "InferencePool":
            jsonschema.validate(one, INFERENCE_POOL)
    objects = [one for one in objects if one["kind"] != "InferencePool"]
    listed = [{"module": MODULES.get(one["apiVersion"], f"kubernetes-models/{one['apiVersion']}"), "kind": one["kind"],
               "object": one} for one in objects]
    (folder / "objects.json").write_text(json.dumps(listed))
    (folder / "objects.ts").write_text("".join(
        f"import type {{ I{one['kind']} as T{i} }} from \"{one['module']}/{one['kind']}\";\n"
        f"export const o{i}: T{i} = {json.dumps(one['object'], indent=1)};\n" for i, one in enumerate(listed)))
    said = ""
    for command in (["node", "validate.mjs", "objects.json"],
                    ["node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext",
                     "--target", "es2022",
                     "objects.ts"]):
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        said += done.stdout if done.returncode != 0 else ""
    return said


class Schema(unittest.TestCase):
    def test_every_overlay_is_valid(self) -> None:
        names = sorted(path.name for path in OVERLAYS.iterdir())
        self.assertEqual(names, ["cpu-demo", "gpu", "inference-gateway", "rdma", "shared-store", "two-models-one-pool",
                                 "two-models-one-pool-hpa"])
        # Each object once, and all in one run of the compiler: reading the types is what takes its time.
        objects = {json.dumps(one, sort_keys=True): one for name in names if not why_not(name, folder.parent)
                   for one in render(name, folder.parent)}
        self.assertEqual(faults(list(objects.values())), "")

    def test_wrong_values_and_unknown_fields_are_found(self) -> None:
        (right,) = [one for one in render("cpu-demo", folder.parent) if one["kind"] == "Deployment"]
        value, field = copy.deepcopy(right), copy.deepcopy(right)
        value["spec"]["replicas"] = "two"
        field["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
        said = faults([value, field])
        self.assertIn("/spec/replicas", said)
        self.assertIn("readynessProbe", said)


def missing() -> str:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    try:
        import jsonschema  # noqa: F401
        import yaml  # noqa: F401
    except ImportError:
        return "python3-yaml or python3-jsonschema is missing"
    if why_not("cpu-demo", folder.parent):
        return why_not("cpu-demo", folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("package.json", "validate.mjs"):
        shutil.copy(HERE / file, folder)
    if not (folder / "node_modules/@kubernetes-models/keda").is_dir():
        with open(folder / "npm.log", "wb") as log:
            done = subprocess.run(["timeout", "120", "npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
                                  cwd=folder,
                                  stdout=log, stderr=log, check=False)
        if done.returncode != 0:
            shutil.rmtree(folder / "node_modules", ignore_errors=True)
            return f"npm could not fetch the API's schemas (see {folder}/npm.log)"
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for what npm fetches")
    options, rest = parser.parse_known_args()
    folder = options.build.resolve() / "manifests_schema"
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
