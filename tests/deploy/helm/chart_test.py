"""The chart deploy/helm/aludel, rendered by render.go, is object by object what kubectl makes of the overlays; its
schema admits the examples and refuses what is wrong.

    chart_test.py --build build/release/tests/deploy

Exits with 77 and a reason where go, Sprig, python3-yaml or python3-jsonschema is missing; without kubectl and Helm,
here or from npm, nothing is compared with theirs.
"""

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Tuple

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests/deploy/kubernetes")]
import tools  # noqa: E402
from kustomize import by_kubectl, kubectl_why_not  # noqa: E402
from renderer import CHART, EXAMPLES, PAIRS, Renderer, why_not  # noqa: E402

renderer: Renderer
build: Path
Object = Dict[str, Any]


def plain(value: Any) -> Any:
    """Without what may differ: the hash in a ConfigMap's name, comments and lines of a configuration, the order of
    named items, and how long expressions are folded."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        items = [plain(one) for one in value]
        named = all(isinstance(one, dict) and "name" in one for one in items)
        return sorted(items, key=lambda one: (one["name"], json.dumps(one, sort_keys=True))) if named else items
    if isinstance(value, str):
        value = re.sub(r"^((?:gateway|decode|prefill)-config(?:-[a-z-]+?)?)-[0-9a-z]{10}$", r"\1-HASH", value)
        if "\n" in value and not value.startswith("{"):
            value = re.sub(r"(^|\s)#.*", "", value)
        return " ".join(value.split())
    return value


def by_name(objects: List[Object]) -> Dict[Tuple[str, str], Object]:
    found = {}
    for one in objects:
        if one["kind"] == "Namespace":
            continue  # made before a release goes into it
        one = plain(one)
        one["metadata"].pop("namespace", None)  # Helm puts objects into the release's
        key = (one["kind"], one["metadata"]["name"])
        assert key not in found, key
        found[key] = one
    return found


class Chart(unittest.TestCase):
    maxDiff = 4000

    def test_objects_are_those_of_the_overlays(self) -> None:
        reason = kubectl_why_not(build)
        if reason:
            print(f"\nskipped: the chart beside what kubectl makes of the overlays: {reason}", flush=True)
            self.skipTest(reason)
        for name, values in PAIRS.items():
            ours = by_name(renderer.chart([str(EXAMPLES / one) for one in values]))
            theirs = by_name(by_kubectl(name, build))
            self.assertEqual(set(ours), set(theirs), name)
            for key, one in theirs.items():
                self.assertEqual(ours[key], one, f"{name}: {key}")
            print(f"{name}: {len(theirs)} objects agree", flush=True)

    def test_every_example_is_compared(self) -> None:
        self.assertEqual({path.name for path in EXAMPLES.iterdir()},
                         {one for values in PAIRS.values() for one in values})

    def test_a_change_of_a_configuration_rolls_its_pods_alone(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("models: {chat: {config: 'drain_timeout_ms: 20000'}}\n")
            file.flush()
            before, after = renderer.chart([]), renderer.chart([file.name])
        changed = {one["metadata"]["name"] for one, other in zip(before, after)
                   if one != other and one["kind"] != "ConfigMap"}
        self.assertEqual(changed, {"decode-chat"})

    def test_a_claim_that_exists_is_mounted_and_not_made(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("modelsVolume: {enabled: true, claim: filled}\n")
            file.flush()
            objects = renderer.chart([file.name])
        workloads = [one for one in objects if one["kind"] in ("Deployment", "StatefulSet")]
        claims = [volume["persistentVolumeClaim"]["claimName"] for one in workloads
                  for volume in one["spec"]["template"]["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        self.assertEqual(claims, ["filled"] * len(workloads))
        self.assertNotIn("PersistentVolumeClaim", {one["kind"] for one in objects})

    def test_a_pool_s_store_and_the_shared_one_are_one_setting(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("prefill: {base: {store: 'memory_bytes: 1000000000'}}\n"
                       "sharedStore: {address: 'redis.example.com:6380', username: aludel}\n")
            file.flush()
            objects = renderer.chart([file.name])
        (text,) = [one["data"]["prefill.textproto"] for one in objects
                   if one["kind"] == "ConfigMap" and "prefill.textproto" in one["data"]]
        self.assertIn(" ".join('store { memory_bytes: 1000000000 remote { address: "redis.example.com:6380" username: "aludel" } }'
                               .split()), " ".join(text.split()))
        (rule,) = [one["spec"]["egress"] for one in objects
                   if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "prefill-store"]
        self.assertEqual(rule, [{"ports": [{"protocol": "TCP", "port": 6380}]}])
        volumes = [volume["name"] for one in objects if one["kind"] == "StatefulSet"
                   for volume in one["spec"]["template"]["spec"]["volumes"]]
        self.assertNotIn("store-remote", volumes)  # no password is asked for

    def test_without_a_shared_store_nothing_may_be_called_for_it(self) -> None:
        objects = renderer.chart([])
        self.assertNotIn("prefill-store", {one["metadata"]["name"] for one in objects})
        self.assertNotIn("store {", json.dumps(objects))

    def test_values_of_a_release_that_knew_keda_alone_go_on(self) -> None:
        """As `helm upgrade --reuse-values` has them: without `autoscaling.by`."""
        values = str(EXAMPLES / "two-models-one-pool.yaml")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("autoscaling: {by: null}\n")
            file.flush()
            self.assertEqual(renderer.chart([values, file.name]), renderer.chart([values]))

    def test_the_namespace_is_the_release_s(self) -> None:
        text = json.dumps(renderer.chart([str(EXAMPLES / "two-models-one-pool.yaml")], namespace="elsewhere"))
        self.assertIn("dns:///decode-chat.elsewhere.svc:7200", text)
        self.assertNotIn("aludel.svc", text)

    def test_a_pool_that_is_not_there_is_named(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("models: {chat: {prefill: nowhere}}\n")
            file.flush()
            with self.assertRaisesRegex(RuntimeError, "models.chat.prefill names no pool of prefill"):
                renderer.chart([file.name])


class ByHelm(unittest.TestCase):
    """What render.go is held against: Helm itself."""

    def setUp(self) -> None:
        reason = tools.why_not("helm", build)
        if reason:
            print(f"\nskipped: the chart by Helm itself: {reason}", flush=True)
            self.skipTest(reason)

    def helm(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([tools.path("helm", build), *arguments], capture_output=True, text=True, check=False)

    def values(self, names: List[str]) -> List[str]:
        return [word for one in names for word in ("--values", str(EXAMPLES / one))]

    def test_it_makes_the_same_objects(self) -> None:
        import yaml
        for name, values in PAIRS.items():
            done = self.helm("template", "aludel", str(CHART), "--namespace", "aludel", *self.values(values))
            self.assertEqual(done.returncode, 0, done.stderr)
            theirs = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout) if one}
            ours = {(one["kind"], one["metadata"]["name"]): one
                    for one in renderer.chart([str(EXAMPLES / one) for one in values])}
            self.assertEqual(theirs, ours, name)
            print(f"{name}: {len(ours)} objects as Helm makes them", flush=True)

    def test_it_finds_no_fault(self) -> None:
        for values in PAIRS.values():
            done = self.helm("lint", "--strict", str(CHART), "--namespace", "aludel", *self.values(values))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_it_refuses_what_the_schema_does(self) -> None:
        for setting, said in [("image.digest=latest", "digest"), ("gateway.replicas=0", "replicas"),
                              ("image.tag=1", "tag"), ("models.chat.prefill=nowhere", "names no pool of prefill")]:
            done = self.helm("template", "aludel", str(CHART), "--set", setting)
            self.assertNotEqual(done.returncode, 0, setting)
            self.assertIn(said, done.stderr)


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        import jsonschema
        import yaml
        cls.validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
        cls.values = yaml.safe_load((CHART / "values.yaml").read_text())

    def merged(self, values: Object, over: Object) -> Object:
        result = copy.deepcopy(values)
        for name, value in over.items():
            if value is None:
                result.pop(name, None)
            elif isinstance(value, dict) and isinstance(result.get(name), dict):
                result[name] = self.merged(result[name], value)
            else:
                result[name] = value
        return result

    def test_values_and_examples_are_admitted(self) -> None:
        import yaml
        self.validator.check_schema(self.validator.schema)
        for values in PAIRS.values():
            merged = self.values
            for one in values:
                merged = self.merged(merged, yaml.safe_load((EXAMPLES / one).read_text()))
            self.assertEqual([error.message for error in self.validator.iter_errors(merged)], [])
        without = self.merged(self.values, {"autoscaling": {"by": None}})
        self.assertEqual([error.message for error in self.validator.iter_errors(without)], [])

    def test_wrong_values_are_refused(self) -> None:
        for over, said in [({"image": {"digest": "latest"}}, "latest"), ({"image": {"tag": "1"}}, "tag"),
                           ({"replicas": 2}, "replicas"), ({"gateway": {"replicas": "two"}}, "two"),
                           ({"gateway": {"replicas": 0}}, "0"),
                           ({"models": {"Chat_1": self.values["models"]["chat"]}}, "Chat_1"),
                           ({"models": {"chat": {"directory": "models/chat"}}}, "models/chat"),
                           ({"models": {"chat": {"engine": {"threads": 1}}}}, "threads"),
                           ({"models": {"chat": None, "json": None}}, "non-empty|enough properties"),
                           ({"autoscaling": {"by": "cpu"}}, "cpu"), ({"tls": {"issuer": {"kind": "Vault"}}}, "Vault")]:
            errors = [error.message for error in self.validator.iter_errors(self.merged(self.values, over))]
            self.assertEqual(len(errors), 1, over)
            self.assertRegex(errors[0], said)


def missing() -> str:
    try:
        import jsonschema  # noqa: F401
    except ImportError:
        return "python3-jsonschema is missing"
    return why_not()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder for the renderer")
    options, rest = parser.parse_known_args()
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    build = options.build.resolve()
    renderer = Renderer(build / "chart")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
