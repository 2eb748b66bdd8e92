"""Every pod of rendered manifests, and clients that load them."""

import argparse
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List, Optional

import kustomize
from pods import Object, Pod, hosts_of, matches, why_not

ROOT = Path(__file__).resolve().parents[3]
Secrets = Dict[str, Dict[str, bytes]]  # by the secret's name and the file's


def unpack(packages: Path, image: Path) -> None:
    """The image: this machine's root with the packages over it."""
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(image)], check=True)


def missing(overlay: str, build: Path) -> str:
    """What keeps an overlay from running here; empty where nothing does."""
    for program in ("dpkg-deb", "ip", "setpriv", "unshare", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is missing"
    return kustomize.why_not(overlay, build) or why_not()


def main_in_namespaces(script: str, document: str, overlay: str) -> argparse.Namespace:
    """The options of a test, once it is in namespaces of its own; before that it does not return. Unittest's are in
    `rest`.
    """
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--packages", type=lambda path: Path(path).resolve(), required=True,
                        help="folder of the .deb files")
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True,
                        help="folder for the chart's renderer")
    parser.add_argument("--previous", type=lambda path: Path(path).resolve(),
                        help="programs of another commit, which pods run until they are rolled")
    parser.add_argument("--inside", action="store_true", help="namespaces have been made")
    options, rest = parser.parse_known_args()
    if not options.inside:
        reason = missing(overlay, options.build)
        if reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        os.execvp("unshare",
                  ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
                              script, "--inside", *sys.argv[1:]])
    options.rest = rest
    return options


class Cluster:
    """Every pod of the manifests."""

    def __init__(self, objects: List[Object], folder: Path, image: Path, secrets: Optional[Secrets] = None) -> None:
        self.objects, self.folder, self.image, self.secrets = objects, folder, image, secrets or {}
        self.headers: Dict[str, str] = {}  # of every request
        self.fresh = itertools.count(100)  # numbers of pods that come later
        self.tls: Optional[ssl.SSLContext] = None  # what clients trust, where the gateway speaks HTTPS
        self.config_maps = {one["metadata"]["name"]: one["data"] for one in self.of("ConfigMap")}
        self.workloads: Dict[str, List[Pod]] = {}
        for one in self.of("StatefulSet") + self.of("Deployment"):
            self.workloads[one["metadata"]["name"]] = [self.make(one, i) for i in range(self.replicas(one))]
        self.hosts = hosts_of(self.pods(), self.of("Service"))

    def of(self, kind: str) -> List[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def replicas(self, workload: Object) -> int:
        """What the workload says, or else what autoscaling begins with."""
        (scaled,) = [one["spec"]["minReplicaCount"] for one in self.of("ScaledObject")
                     if one["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]] or [0]
        return workload["spec"].get("replicas", scaled)

    def make(self, workload: Object, number: int) -> Pod:
        return Pod(f"{workload['metadata']['name']}-{number}", workload["spec"]["template"], self.config_maps,
                   self.secrets,
                   self.folder, self.image)

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
        ready = [pod for pod in self.pods() if pod.ready
                 and matches({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        pod = ready[number % len(ready)]
        questions = (ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()
        question = json.loads(questions[number % len(questions)])
        # Beginnings of their own: gateways send what begins alike to where it is cached, and no prefill server is asked.
        content = f"Note {number}. {question['context']}\n{question['question']}"
        body = {"model": model, "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
        scheme = "https" if self.tls else "http"
        request = urllib.request.Request(f"{scheme}://{pod.ip}:{pod.ports[port['targetPort']]}/v1/chat/completions",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **self.headers})
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as reply:
            return json.loads(reply.read())

    def await_plan(self, model: str, plan: str) -> None:
        """At every gateway: a server that came before its peers finds them within a probe or two."""
        deadline = time.monotonic() + 60
        seen: object = None
        good = 0  # one after the other: gateways take turns
        for number in range(10_000):
            try:
                seen = self.ask(model, number)["aludel"]["plan"]
            except urllib.error.HTTPError as error:
                seen = error.read().decode()
                time.sleep(0.1)
            good = good + 1 if seen == plan else 0
            if good == len(self.workloads["gateway"]):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{model}: not {plan} within a minute, but {seen}")

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
        for _ in range(len(running)):
            fresh = self.make(workload, next(self.fresh))
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

    def await_answered(self, count: int) -> None:
        """Until so many were answered; an error ends the wait, and is the test's to report."""
        deadline = time.monotonic() + 120
        while len(self.answered) < count and not self.errors:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self.answered)} requests answered within two minutes, not {count}")
            time.sleep(0.1)

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        for thread in self.threads:
            thread.join()
