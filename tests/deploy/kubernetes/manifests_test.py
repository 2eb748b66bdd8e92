"""The manifests of deploy/kubernetes/overlays/cpu-demo, rendered by kubectl and run: every pod a process with the
user, root and network that its manifest asks for. Waits on the probes, asks through the Service, looks at metrics
where the PodMonitors look, holds the connections against the NetworkPolicies, and rolls every workload under load.

    manifests_test.py --packages build/release/packages --build build/release/tests/deploy [--previous FOLDER]

With --previous the pods run the programs in FOLDER, of another commit (previous_build.py makes one), until they are
rolled: an upgrade. Without it, or where there is no such folder, all rolling is a restart.

The image is this machine's root with the .deb files of --packages unpacked over it. Needs root; exits with 77 and a
reason where something is missing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, Set, Tuple

ROOT = Path(__file__).resolve().parents[3]
OVERLAY = "cpu-demo"
sys.path.insert(0, str(Path(__file__).resolve().parent))
import pods as emulated  # noqa: E402
from cluster import Cluster, Load, main_in_namespaces, unpack  # noqa: E402
from kustomize import render  # noqa: E402
from pods import matches  # noqa: E402

REQUESTS = 500
options = argparse.Namespace()


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        emulated.join()
        # Of this namespace only, and no part of the root below the pods: overlays must not overlap.
        cls.folder = Path("/mnt")
        subprocess.run(["mount", "-t", "tmpfs", "none", str(cls.folder)], check=True)
        image = cls.folder / "image"
        unpack(options.packages, image)
        cls.cluster = Cluster(render(OVERLAY, options.build), cls.folder, image)
        cls.first_image = image
        if options.previous and not options.previous.is_dir():
            print(f"skipped: an upgrade between two commits: there is no {options.previous}", flush=True)
        elif options.previous:
            cls.first_image = cls.folder / "previous"
            shutil.copytree(image, cls.first_image)
            for pod in cls.cluster.pods():
                (program,) = pod.container["command"]
                shutil.copy(options.previous / Path(program).name, f"{cls.first_image}{program}")
                pod.image = cls.first_image
        try:
            cls.cluster.start()
        except RuntimeError:
            print("\n".join(f"--- {pod.name}\n{pod.log()}" for pod in cls.cluster.pods()))
            raise

    def test_1_answers_come_over_a_handed_over_cache(self) -> None:
        for model in ("chat", "json"):
            self.cluster.await_plan(model, "remote")

    def test_2_pods_are_restricted(self) -> None:
        for pod in self.cluster.pods():
            status = dict(line.split(":\t", 1)
                          for line in Path(f"/proc/{pod.process.pid}/status").read_text().splitlines()
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
        called = {(pod.labels[name], other.labels[name], port) for pod in by_ip.values()
                  for other, port in pod.calls(by_ip)}
        self.assertEqual(called, allowed["egress"])

    def test_5_budgets_and_services_select_pods(self) -> None:
        for one in self.cluster.of("PodDisruptionBudget"):
            chosen = [pod for pod in self.cluster.pods() if matches(one["spec"]["selector"], pod.labels)]
            self.assertEqual({pod.name.rsplit("-", 1)[0] for pod in chosen}, {one["metadata"]["name"]})
        for one in self.cluster.of("Service"):
            chosen = [pod for pod in self.cluster.pods()
                      if matches({"matchLabels": one["spec"]["selector"]}, pod.labels)]
            self.assertEqual({pod.name.rsplit("-", 1)[0] for pod in chosen}, {one["metadata"]["name"]})
            for port in one["spec"]["ports"]:
                self.assertTrue(all(port["targetPort"] in pod.ports for pod in chosen))

    def roll_all(self) -> str:
        """Every workload at once, as after a new image, under load; what clients saw."""
        workloads = self.cluster.of("StatefulSet") + self.cluster.of("Deployment")
        for pod in self.cluster.pods():
            pod.image = self.cluster.image
        with Load(self.cluster) as load, ThreadPoolExecutor(len(workloads)) as pool:
            codes = list(pool.map(self.cluster.roll, workloads))
            rolled = len(load.answered)
            load.await_answered(REQUESTS)
        self.assertEqual(codes, [[0, 0]] * len(workloads))
        self.assertEqual(load.errors, [])
        self.assertTrue(all(pod.runs_from(self.cluster.image) for pod in self.cluster.pods()))
        after = len(load.answered) - rolled
        return f"{rolled} requests answered while every workload was rolled, {after} after it, 0 failed"

    def test_6_rolling_loses_no_request(self) -> None:
        upgrade = self.first_image != self.cluster.image
        for pod in self.cluster.pods():
            self.assertTrue(pod.runs_from(self.first_image), pod.name)
            self.assertEqual(pod.runs_from(self.cluster.image), not upgrade, pod.name)
        print(f"{'upgrade' if upgrade else 'restart'}: {self.roll_all()}", flush=True)


if __name__ == "__main__":
    options = main_in_namespaces(__file__, __doc__, OVERLAY)
    unittest.main(argv=[sys.argv[0], *options.rest], verbosity=2)
