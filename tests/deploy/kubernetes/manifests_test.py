"""The manifests of deploy/kubernetes/overlays/cpu-demo, rendered by kubectl and run: every pod a process with the user, root and
network that its manifest asks for. Waits on the probes, asks through the Service, looks at metrics where the PodMonitors look, holds
the connections against the NetworkPolicies, and rolls every workload under load.

    manifests_test.py --packages build/release/packages

The image is this machine's root with the .deb files of --packages unpacked over it. Needs root; exits with 77 and a reason where
something is missing.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List, Set, Tuple

ROOT = Path(__file__).resolve().parents[3]
OVERLAY = ROOT / "deploy/kubernetes/overlays/cpu-demo"
sys.path.insert(0, str(Path(__file__).resolve().parent))
import pods as emulated  # noqa: E402
from pods import Object, Pod, hosts_of, matches  # noqa: E402

packages = Path()


class Cluster:
    """Every pod of the manifests."""

    def __init__(self, objects: List[Object], folder: Path, image: Path) -> None:
        self.objects, self.folder, self.image = objects, folder, image
        self.config_maps = {one["metadata"]["name"]: one["data"] for one in self.of("ConfigMap")}
        self.workloads: Dict[str, List[Pod]] = {}
        for one in self.of("StatefulSet") + self.of("Deployment"):
            self.workloads[one["metadata"]["name"]] = [self.make(one, i) for i in range(one["spec"]["replicas"])]
        self.hosts = hosts_of(self.pods(), self.of("Service"))

    def of(self, kind: str) -> List[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def make(self, workload: Object, number: int) -> Pod:
        return Pod(f"{workload['metadata']['name']}-{number}", workload["spec"]["template"], self.config_maps, self.folder,
                   self.image)

    def pods(self) -> List[Pod]:
        return [pod for several in self.workloads.values() for pod in several]

    def start(self) -> None:
        """All at once, as a cluster does: in any order."""
        errors: List[str] = []

        def start(pod: Pod) -> None:
            try:
                pod.start(self.hosts)
            except RuntimeError as error:
                errors.append(str(error))
        threads = [threading.Thread(target=start, args=(pod,)) for pod in self.pods()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise RuntimeError("\n".join(errors))

    def ask(self, model: str, number: int) -> Object:
        """One question through the gateways' Service, of a ready pod."""
        (service,) = [one for one in self.of("Service") if one["metadata"]["name"] == "gateway"]
        (port,) = service["spec"]["ports"]
        ready = [pod for pod in self.pods() if pod.ready and matches({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        pod = ready[number % len(ready)]
        questions = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()
        question = json.loads(questions[number % len(questions)])
        body = {"model": model, "temperature": 0, "max_tokens": 8,
                "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
        request = urllib.request.Request(f"http://{pod.ip}:{pod.ports[port['targetPort']]}/v1/chat/completions",
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())

    def roll(self, workload: Object) -> List[int]:
        """Replaces every pod as the workload's controller would; the exit codes."""
        name = workload["metadata"]["name"]
        running = self.workloads[name]
        codes = []
        if workload["kind"] == "StatefulSet":
            for pod in reversed(running):
                codes.append(pod.end())
                pod.start(self.hosts)
                time.sleep(workload["spec"]["minReadySeconds"])  # what the controller does
            return codes
        update = workload["spec"]["strategy"]["rollingUpdate"]
        assert update == {"maxSurge": 1, "maxUnavailable": 0}, update
        for number in range(len(running)):
            fresh = self.make(workload, 100 + number)
            running.append(fresh)
            fresh.start(self.hosts)
            codes.append(running[0].end())
            del running[0]
        return codes


class Load:
    """Clients that ask without pause until stopped; what failed is in `errors`."""

    CLIENTS = 4

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.numbers = itertools.count()
        self.answered: List[int] = []
        self.errors: List[str] = []
        self.stopping = False
        self.threads = [threading.Thread(target=self.run) for _ in range(self.CLIENTS)]

    def run(self) -> None:
        while not self.stopping:
            number = next(self.numbers)
            try:
                self.cluster.ask("chat" if number % 2 else "json", number)
                self.answered.append(number)
            except urllib.error.HTTPError as error:
                self.errors.append(f"question {number}: {error.code} {error.read().decode()}")
            except (OSError, ValueError) as error:  # whatever else a client would have seen
                self.errors.append(f"question {number}: {error!r}")

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        for thread in self.threads:
            thread.join()


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        import yaml
        emulated.join()
        cls.folder = Path("/mnt")  # of this namespace only, and no part of the root below the pods: overlays must not overlap
        subprocess.run(["mount", "-t", "tmpfs", "none", str(cls.folder)], check=True)
        image = cls.folder / "image"
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(image)], check=True)
        rendered = subprocess.run(["kubectl", "kustomize", str(OVERLAY)], capture_output=True, text=True, check=True).stdout
        cls.cluster = Cluster([one for one in yaml.safe_load_all(rendered) if one], cls.folder, image)
        try:
            cls.cluster.start()
        except RuntimeError:
            print("\n".join(f"--- {pod.name}\n{pod.log()}" for pod in cls.cluster.pods()))
            raise

    def await_plan(self, model: str, plan: str) -> None:
        """A decode server that came before its prefill servers finds them within a probe or two."""
        deadline = time.monotonic() + 60
        seen: object = None
        for number in range(10_000):
            try:
                seen = self.cluster.ask(model, number)["aludel"]["plan"]
            except urllib.error.HTTPError as error:
                seen = error.read().decode()
                time.sleep(0.1)
            if seen == plan:
                return
            self.assertLess(time.monotonic(), deadline, seen)

    def test_1_answers_come_over_a_handed_over_cache(self) -> None:
        for model in ("chat", "json"):
            self.await_plan(model, "remote")

    def test_2_pods_are_restricted(self) -> None:
        for pod in self.cluster.pods():
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pod.process.pid}/status").read_text().splitlines()
                          if ":\t" in line)
            self.assertEqual(set(status["Uid"].split()), {"65532"}, pod.name)
            self.assertEqual(int(status["CapBnd"], 16), 0)
            self.assertTrue(pod.container["securityContext"]["readOnlyRootFilesystem"])
            self.assertEqual(pod.container["securityContext"]["capabilities"], {"drop": ["ALL"]})
            self.assertEqual(pod.spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(pod.spec["automountServiceAccountToken"])
            self.assertIn("@sha256:", pod.container["image"])

    def test_3_metrics_are_where_the_monitors_look(self) -> None:
        seen: Set[str] = set()
        for monitor in self.cluster.of("PodMonitor"):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            for pod in self.cluster.pods():
                if matches(monitor["spec"]["selector"], pod.labels):
                    self.assertIn("aludel_build_info", pod.get(endpoint["port"], endpoint["path"]) or "", pod.name)
                    self.assertEqual(pod.labels[monitor["spec"]["jobLabel"]], monitor["metadata"]["name"])
                    seen.add(pod.name)
        self.assertEqual(seen, {pod.name for pod in self.cluster.pods()})

    def test_4_policies_admit_what_is_called_and_nothing_else(self) -> None:
        name = "app.kubernetes.io/name"
        allowed: Dict[str, Set[Tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
        for policy in self.cluster.of("NetworkPolicy"):
            here = policy["spec"]["podSelector"]["matchLabels"][name]
            for way, side in (("ingress", "from"), ("egress", "to")):
                for rule in policy["spec"][way]:
                    for peer in rule.get(side, []):
                        if "namespaceSelector" in peer:
                            continue  # DNS and Prometheus
                        there = peer["podSelector"]["matchLabels"][name]
                        pair = (there, here) if way == "ingress" else (here, there)
                        allowed[way] |= {(*pair, port["port"]) for port in rule["ports"]}
        self.assertEqual(allowed["ingress"], allowed["egress"])
        by_ip = {pod.ip: pod for pod in self.cluster.pods()}
        called = {(pod.labels[name], other.labels[name], port) for pod in by_ip.values() for other, port in pod.calls(by_ip)}
        self.assertEqual(called, allowed["egress"])

    def test_5_budgets_and_services_select_pods(self) -> None:
        for one in self.cluster.of("PodDisruptionBudget"):
            chosen = [pod for pod in self.cluster.pods() if matches(one["spec"]["selector"], pod.labels)]
            self.assertEqual({pod.name.rsplit("-", 1)[0] for pod in chosen}, {one["metadata"]["name"]})
        for one in self.cluster.of("Service"):
            chosen = [pod for pod in self.cluster.pods() if matches({"matchLabels": one["spec"]["selector"]}, pod.labels)]
            self.assertEqual({pod.name.rsplit("-", 1)[0] for pod in chosen}, {one["metadata"]["name"]})
            for port in one["spec"]["ports"]:
                self.assertTrue(all(port["targetPort"] in pod.ports for pod in chosen))

    def test_6_rolling_every_workload_loses_no_request(self) -> None:
        workloads = self.cluster.of("StatefulSet") + self.cluster.of("Deployment")
        # All at once, as after a new image.
        with Load(self.cluster) as load, ThreadPoolExecutor(len(workloads)) as pool:
            codes = list(pool.map(self.cluster.roll, workloads))
        self.assertEqual(codes, [[0, 0]] * len(workloads))
        print(f"{len(load.answered)} requests answered while every workload was rolled, {len(load.errors)} failed", flush=True)
        self.assertEqual(load.errors, [])
        self.assertTrue(load.answered)


def missing() -> str:
    for program in ("kubectl", "ip", "setpriv", "unshare", "dpkg-deb"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    try:
        import yaml  # noqa: F401
    except ImportError:
        return "python3-yaml is missing"
    if subprocess.run(["kubectl", "kustomize", str(OVERLAY)], capture_output=True, check=False).returncode != 0:
        return "this kubectl is too old to render the manifests: it wants kustomize 4 (kubectl 1.21 or newer)"
    return emulated.why_not()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the .deb files")
    parser.add_argument("--inside", action="store_true", help="namespaces have been made")
    options, rest = parser.parse_known_args()
    if not options.inside:
        reason = missing()
        if reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        os.execvp("unshare", ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
                              __file__, "--inside", "--packages", str(options.packages), *rest])
    packages = options.packages.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
