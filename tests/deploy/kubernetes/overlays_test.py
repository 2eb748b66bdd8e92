"""What the overlays of deploy/kubernetes promise, looked up in what kubectl renders (or the chart): configurations
that the servers accept, devices, volumes, certificates for the names that peers call, autoscaling on series that exist.

    overlays_test.py --packages build/release/packages --build build/release/tests/deploy
"""

import argparse
import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, Iterator, List

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "tests/deploy/observability"))
from autoscaling import external_query_of, external_rules, query_of, rules  # noqa: E402
from cluster import unpack  # noqa: E402
from kustomize import OVERLAYS, kubectl_why_not, render, why_not  # noqa: E402
from pods import Object, matches  # noqa: E402
from rules_test import exported, series_of  # noqa: E402

options = argparse.Namespace()


class Overlays(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        names = sorted(path.name for path in OVERLAYS.iterdir())
        cls.rendered: Dict[str, List[Object]] = {
            name: render(name, options.build) for name in names if not why_not(name, options.build)}

    def of(self, overlay: str, *kinds: str) -> List[Object]:
        return [one for one in self.rendered[overlay] if one["kind"] in kinds]

    def servers(self, overlay: str) -> Iterator[Object]:
        """The one container of each workload, with its pod's `spec` and the workload's `name`."""
        for one in self.of(overlay, "StatefulSet", "Deployment"):
            spec = one["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            yield {"name": one["metadata"]["name"], "spec": spec, "container": container,
                   "labels": one["spec"]["template"]["metadata"]["labels"]}

    def text_of(self, overlay: str, workload: Object) -> str:
        """The configuration that a workload reads."""
        (name,) = [volume["configMap"]["name"] for volume in workload["spec"]["volumes"] if "configMap" in volume]
        (one,) = [one for one in self.of(overlay, "ConfigMap") if one["metadata"]["name"] == name]
        (text,) = one["data"].values()
        return text

    def test_servers_accept_their_configurations(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            unpack(options.packages, Path(folder))
            for overlay in ("cpu-demo", "gpu", "rdma", "shared-store"):  # two-models-one-pool is run, by secrets_test.py
                for one in self.servers(overlay):
                    config = Path(folder) / "config"
                    config.write_text(self.text_of(overlay, one))
                    done = subprocess.run([folder + one["container"]["command"][0], "--check-config", "--config",
                                           str(config)],
                                          capture_output=True, text=True, check=False)
                    self.assertEqual(done.returncode, 0, f"{overlay} {one['name']}: {done.stdout}{done.stderr}")

    def test_every_pod_is_restricted(self) -> None:
        for overlay in self.rendered:
            if not kubectl_why_not(options.build):  # a release goes into a namespace that is there
                (namespace,) = self.of(overlay, "Namespace")
                self.assertEqual(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted")
            for one in self.servers(overlay):
                context = one["container"]["securityContext"]
                self.assertEqual((context["capabilities"], context["allowPrivilegeEscalation"]),
                                 ({"drop": ["ALL"]}, False))
                self.assertTrue(one["spec"]["securityContext"]["runAsNonRoot"] and context["readOnlyRootFilesystem"])
                kinds = {key for volume in one["spec"]["volumes"] for key in volume} - {"name"}
                self.assertLessEqual(kinds, {"configMap", "secret", "emptyDir", "persistentVolumeClaim"})

    def test_configurations_read_what_is_mounted(self) -> None:
        for overlay in self.rendered:
            for one in self.servers(overlay):
                mounts = [mount["mountPath"] for mount in one["container"]["volumeMounts"]]
                for path in re.findall(r'"(/(?:var/lib|run|etc)/[^"]+)"', self.text_of(overlay, one)):
                    self.assertTrue(any(path.startswith(mount + "/") for mount in mounts),
                                    f"{overlay} {one['name']}: {path}")
        self.assertIn("/var/lib/aludel/models", self.text_of("gpu", next(self.servers("gpu"))))

    def test_gpu_servers_have_a_card_each(self) -> None:
        for overlay in ("gpu", "rdma"):
            cards = {one["name"]: one["container"]["resources"]["limits"].get("nvidia.com/gpu")
                     for one in self.servers(overlay)}
            self.assertEqual(cards, {"gateway": None, "prefill-base": 1, "decode-assistant": 1})

    def test_rdma_is_let_through(self) -> None:
        (policy,) = [one for one in self.of("rdma", "NetworkPolicy") if one["metadata"]["name"] == "ucx"]
        # A listener's port is one that the kernel picks: every port of its range, from and to both roles.
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        roles = {"aludel-decode", "aludel-prefill"}
        for way, side in (("ingress", "from"), ("egress", "to")):
            (rule,) = policy["spec"][way]
            (port,), (peer,) = rule["ports"], rule[side]
            self.assertEqual(port["protocol"], "TCP")
            self.assertLessEqual(port["port"], first)
            self.assertGreaterEqual(port["endPort"], last)
            for selector in (policy["spec"]["podSelector"], peer["podSelector"]):
                (chosen,) = selector["matchExpressions"]
                self.assertEqual((chosen["operator"], set(chosen["values"])), ("In", roles))
        for one in self.servers("rdma"):
            if one["name"] != "gateway":
                env = {item["name"]: item["value"] for item in one["container"]["env"]}
                self.assertEqual(set(env), {"UCX_NET_DEVICES"})  # a range of UCX's would not hold for the listener
                self.assertEqual(one["container"]["resources"]["limits"]["rdma/hca_shared_devices_a"], 1)
                self.assertIn("/dev/shm", [mount["mountPath"] for mount in one["container"]["volumeMounts"]])
                self.assertIn('kind: "ucx"', self.text_of("rdma", one))

    def test_prefill_servers_may_call_the_store_that_they_share(self) -> None:
        (policy,) = [one for one in self.of("shared-store", "NetworkPolicy") if one["metadata"]["name"] == "prefill-store"]
        self.assertEqual(policy["spec"]["policyTypes"], ["Egress"])
        (rule,) = policy["spec"]["egress"]
        (port,), (peer,) = rule["ports"], rule["to"]
        for one in self.servers("shared-store"):
            text = self.text_of("shared-store", one)
            named = re.findall(r'remote \{\s*address: "([^":]+):(\d+)"', text)
            chosen = matches(policy["spec"]["podSelector"], one["labels"])
            self.assertEqual(chosen, one["name"] == "prefill-base", one["name"])
            self.assertEqual(named, [("valkey", str(port["port"]))] if chosen else [], one["name"])
        self.assertEqual(peer, {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "valkey"}}})

    def test_autoscaling_goes_by_series_that_exist(self) -> None:
        names = {one["name"]: one for one in self.servers("two-models-one-pool")}
        scaled = self.of("two-models-one-pool", "ScaledObject")
        self.assertEqual({one["spec"]["scaleTargetRef"]["name"] for one in scaled}, set(names))
        rules: Dict[str, Any] = {"groups": [{"name": "triggers", "rules": []}]}
        for one in scaled:
            for trigger in one["spec"]["triggers"]:
                query = trigger["metadata"]["query"]
                self.assertLessEqual(series_of(query) - {"vector", "avg_over_time"}, exported(), query)
                # Of the servers themselves, or what their callers say that they need.
                said_by = {"prefill": "aludel-decode", "decode": "aludel-gateway"}.get(one["metadata"]["name"].split("-")[0])
                job = said_by if trigger["name"] == "desired" else names[one["metadata"]["name"]]["labels"][
                    "app.kubernetes.io/name"]
                self.assertIn(f'job="{job}"', query)
                of = f"{one['metadata']['name']} {trigger['name']}"
                rules["groups"][0]["rules"].append({"record": "a:b", "expr": query, "labels": {"of": of}})
        if shutil.which("promtool"):
            with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
                json.dump(rules, file)
                file.flush()
                done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_autoscalers_without_keda_ask_for_the_same(self) -> None:
        """The same workloads, bounds and thresholds, by metrics that the adapter has rules for."""
        by_keda = {one["metadata"]["name"]: one["spec"] for one in self.of("two-models-one-pool", "ScaledObject")}
        autoscalers = {one["metadata"]["name"]: one["spec"]
                       for one in self.of("two-models-one-pool-hpa", "HorizontalPodAutoscaler")}
        self.assertEqual(set(autoscalers), set(by_keda))
        self.assertEqual(self.of("two-models-one-pool-hpa", "ScaledObject"), [])
        used, external = set(), []
        for name, spec in autoscalers.items():
            keda = by_keda[name]
            self.assertEqual(spec["scaleTargetRef"], keda["scaleTargetRef"])
            self.assertEqual((spec["minReplicas"], spec["maxReplicas"]),
                             (keda["minReplicaCount"], keda["maxReplicaCount"]))
            self.assertEqual(spec["behavior"], keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
            for metric, trigger in zip(spec["metrics"], keda["triggers"], strict=True):
                kind = "External" if trigger["name"] == "desired" else "Pods"
                asked = metric[kind.lower()]
                self.assertEqual((metric["type"], asked["target"]["type"]), (kind, trigger["metricType"]))
                mean = asked["target"]["averageValue"]
                value = float(mean[:-1]) / 1000 if mean.endswith("m") else float(mean)
                self.assertEqual(value, float(trigger["metadata"]["threshold"]), f"{name} {trigger['name']}")
                used.add(asked["metric"]["name"])
                if kind == "External":
                    external.append(external_query_of(asked["metric"]))
        self.assertEqual(used, set(rules()) | set(external_rules()))
        for query in [query_of(rule, ["a", "b"]) for rule in rules().values()] + external:
            self.assertLessEqual(series_of(query) - {"avg_over_time"}, exported(), query)

    def test_autoscaling_counts_right(self) -> None:
        """Six prompts wait for prefill servers, which take .25 s for one: 1.5 s of queue, or three servers at .5 s
        each.
        """
        if shutil.which("promtool") is None:
            print("\nskipped: autoscaling's queries over series: promtool is not installed (Debian: prometheus)",
                  flush=True)
            self.skipTest("promtool is not installed")
        (scaled,) = [one for one in self.of("two-models-one-pool", "ScaledObject")
                     if one["metadata"]["name"] == "prefill-base"]
        queue = scaled["spec"]["triggers"][0]
        self.assertEqual(queue["metadata"]["threshold"], "0.5")
        stage = 'job="aludel-decode",namespace="aludel",pod="decode-chat-0",stage="prefill",plan="remote"'
        busy = [f"aludel_time_to_first_token_stage_seconds_{one}{{{stage}}} {values}"
                for one, values in (("sum", "0+1x60"), ("count", "0+4x60"))]
        series = "aludel_num_requests_waiting{{job=\"aludel-{}\",namespace=\"aludel\",pod=\"{}\"}} {}x60"
        waiting = [series.format("prefill", f"prefill-base-{i}", i) for i in (2, 4)]
        others = [series.format("decode", "decode-chat-5", 100), series.format("prefill", "prefill-other-0", 100)]
        # Without KEDA the same for each pod: two prompts wait for one, four for the other.
        each = query_of(rules()["aludel_prefill_queue_seconds"], ["prefill-base-2", "prefill-base-4"])
        tests = [{"interval": "15s",
                  "input_series": [dict(zip(("series", "values"), one.rsplit(" ", 1))) for one in inputs],
                  "promql_expr_test": [
                      {"expr": queue["metadata"]["query"], "eval_time": "10m", "exp_samples": [
                          {"labels": "{}", "value": sum(values)}]},
                      {"expr": each, "eval_time": "10m", "exp_samples": [
                          {"labels": f'{{namespace="aludel",pod="prefill-base-{i}"}}', "value": value}
                          for i, value in zip((2, 4), values)]}]}
                 for inputs, values in ((busy + waiting + others, (0.5, 1)), (busy + others, ()), (waiting, (0, 0)))]
        self.check_queries(tests)

    def check_queries(self, tests: List[Object]) -> None:
        """By promtool."""
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"rule_files": [], "tests": tests}, file)
            file.flush()
            done = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_autoscaling_takes_what_servers_say_for_it(self) -> None:
        """The most that a gateway says of decode servers, and of prefill servers all that their callers keep busy."""
        if shutil.which("promtool") is None:
            print("\nskipped: what servers say for autoscalers: promtool is not installed (Debian: prometheus)", flush=True)
            self.skipTest("promtool is not installed")
        triggers = {one["metadata"]["name"]: {trigger["name"]: trigger["metadata"] for trigger in one["spec"]["triggers"]}
                    for one in self.of("two-models-one-pool", "ScaledObject")}
        says = 'aludel_desired_replicas{{namespace="{}",job="aludel-{}",role="{}",model="{}",pod="{}"}} {}x60'
        said = [says.format(*one) for one in (
            ("aludel", "gateway", "decode", "chat", "gateway-a", 2), ("aludel", "gateway", "decode", "chat", "gateway-b", 3),
            ("aludel", "gateway", "decode", "json", "gateway-a", 1), ("other", "gateway", "decode", "chat", "gateway-c", 9),
            ("aludel", "decode", "prefill", "chat", "decode-chat-0", 0.5), ("aludel", "decode", "prefill", "json", "decode-json-1", 1),
            ("other", "decode", "prefill", "chat", "decode-chat-0", 9))]
        wanted = {"decode-chat": 3, "decode-json": 1, "prefill-base": 1.5}
        asked = {triggers[name]["desired"]["query"]: value for name, value in wanted.items()}
        for one in self.of("two-models-one-pool-hpa", "HorizontalPodAutoscaler"):
            for metric in one["spec"]["metrics"]:
                if "external" in metric:
                    asked[external_query_of(metric["external"]["metric"])] = wanted[one["metadata"]["name"]]
        self.assertEqual(len(asked), 6)
        self.assertEqual({triggers[name]["desired"]["threshold"] for name in wanted}, {"1"})
        self.check_queries([{"interval": "15s", "input_series": [dict(zip(("series", "values"), one.rsplit(" ", 1))) for one in said],
                             "promql_expr_test": [{"expr": query, "eval_time": "10m", "exp_samples": [
                                 {"labels": "{}", "value": value}]} for query, value in asked.items()]}])

    def test_peers_know_every_server_that_may_be_started(self) -> None:
        """By names that stand for all pods of a workload, however many there are."""
        for overlay in self.rendered:
            services = {one["metadata"]["name"]: one["spec"] for one in self.of(overlay, "Service")}
            wanted = set()
            for one in self.servers(overlay):
                if one["name"] == "gateway":
                    continue
                service = services[one["name"]]
                self.assertEqual((service["clusterIP"], service["publishNotReadyAddresses"]), ("None", True))
                self.assertTrue(matches({"matchLabels": service["selector"]}, one["labels"]), one["name"])
                (port,) = [port["port"] for port in service["ports"] if port["name"] == "grpc"]
                self.assertIn({"name": "grpc", "containerPort": port}, one["container"]["ports"])
                wanted.add((one["name"], str(port)))
            named = {tuple(found) for one in self.servers(overlay) for found in re.findall(
                r'_targets: "dns:///([^":.]+)(?:\.aludel\.svc)?:(\d+)"', self.text_of(overlay, one))}
            self.assertEqual(named, wanted, overlay)
            listed = sum(self.text_of(overlay, one).count("_targets:") for one in self.servers(overlay))
            models = [one for one in self.servers(overlay) if one["name"].startswith("decode")]
            self.assertEqual(listed, 2 * len(models), overlay)  # a gateway's and its own

    def test_certificates_have_the_names_that_are_called_and_asked_for(self) -> None:
        overlay = "two-models-one-pool"
        names = {one["metadata"]["name"]: one["spec"].get("dnsNames", []) for one in self.of(overlay, "Certificate")}
        for one in self.servers(overlay):
            text = self.text_of(overlay, one)
            for target in re.findall(r'_targets: "dns:///([^":]+):', text):
                self.assertTrue(any(fnmatch.fnmatch(target, name) for name in names[f"{target.split('-')[0]}-tls"]),
                                target)
            for role, identity in re.findall(r'(\w+)_identities: "([^"]+)"', text):
                self.assertIn(identity, names[f"{role}-tls"])
            for volume in one["spec"]["volumes"]:
                if "secret" in volume and volume["name"] != "keys":
                    self.assertIn(volume["secret"]["secretName"], names)

    def test_rules_and_dashboard_are_those_of_the_repository(self) -> None:
        made = subprocess.run([sys.executable, str(ROOT / "deploy/prometheus/make_prometheus_rule.py"), "--check"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        import yaml
        (rule,) = self.of("cpu-demo", "PrometheusRule")
        groups = [group for name in ("rules.yml", "alerts.yml")
                  for group in yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())["groups"]]
        # kubectl folds long expressions in another way.
        self.assertEqual(" ".join(json.dumps(rule["spec"]["groups"], sort_keys=True).replace("\\n", " ").split()),
                         " ".join(json.dumps(groups, sort_keys=True).replace("\\n", " ").split()))
        (dashboard,) = [one for one in self.of("cpu-demo", "ConfigMap")
                        if one["metadata"]["name"] == "aludel-dashboard"]
        self.assertEqual(dashboard["data"], {"aludel.json": (ROOT / "deploy/grafana/aludel.json").read_text()})

    def test_the_inference_pool_is_the_gateways(self) -> None:
        reason = why_not("inference-gateway", options.build)
        if reason:
            print(f"\nskipped: the overlay inference-gateway: {reason}", flush=True)
            self.skipTest(reason)
        (pool,) = self.of("inference-gateway", "InferencePool")
        chosen = [one for one in self.servers("inference-gateway") if matches(pool["spec"]["selector"], one["labels"])]
        self.assertEqual([one["name"] for one in chosen], ["gateway"])
        ports = {port["name"]: port["containerPort"] for port in chosen[0]["container"]["ports"]}
        self.assertEqual([port["number"] for port in pool["spec"]["targetPorts"]], [ports["http"]])
        (route,) = self.of("inference-gateway", "HTTPRoute")
        self.assertEqual(route["spec"]["rules"][0]["backendRefs"][0]["name"], pool["metadata"]["name"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=lambda path: Path(path).resolve(), required=True,
                        help="folder of the .deb files")
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True,
                        help="folder for the chart's renderer")
    options, rest = parser.parse_known_args()
    if why_not("cpu-demo", options.build):
        print(f"skipped: {why_not('cpu-demo', options.build)}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
