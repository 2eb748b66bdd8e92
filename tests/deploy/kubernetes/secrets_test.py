"""The overlay two-models-one-pool, run: mutual TLS between the servers, HTTPS and keys at the gateway, from secrets
that change under load as the kubelet changes them.

    secrets_test.py --packages build/release/packages --build build/release/tests/deploy

Certificates are made from the manifests' own Certificate objects. Needs root; exits with 77 and a reason where
something is missing.
"""

import argparse
import hashlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import unittest
import urllib.error
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).resolve().parents[3]
OVERLAY = "two-models-one-pool"
sys.path.insert(0, str(Path(__file__).resolve().parent))
import pods as emulated  # noqa: E402
from autoscaling import Prometheus, external_query_of, query_of, rules  # noqa: E402
from cluster import Cluster, Load, Secrets, main_in_namespaces, unpack  # noqa: E402
from kustomize import render  # noqa: E402
from pods import Object  # noqa: E402

RELOADED_S = 4.0  # more than reload_interval_s
SCRAPED_S = 2.0  # a scrape that began before a moment is read by queries of that moment
PREFILL_S = 'sum(rate(aludel_time_to_first_token_stage_seconds_sum{stage="prefill",plan="remote"}[5m]))'
ANSWERED = 100  # requests beside each change, at least
options = argparse.Namespace()


class Authority:
    """What cert-manager does with Certificates, with openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=aludel-ca "
                 "-keyout ca.key -out ca.crt")

    def run(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, check=True, capture_output=True)

    def issue(self, certificate: Object) -> Dict[str, bytes]:
        """A new key and certificate; the files of the secret."""
        spec = certificate["spec"]
        usages = ",".join({"server auth": "serverAuth", "client auth": "clientAuth"}[one]
                          for one in spec.get("usages", ["server auth"]))
        names = ",".join(f"DNS:{name}" for name in spec["dnsNames"])
        (self.folder / "extensions").write_text(f"subjectAltName={names}\nextendedKeyUsage={usages}\n")
        self.run("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=any -keyout tls.key -out tls.csr")
        self.run("x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile extensions "
                 "-out tls.crt")
        return {name: (self.folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}


def key_line(name: str) -> bytes:
    """Whose key is NAME-key."""
    return f"{name} {hashlib.sha256(f'{name}-key'.encode()).hexdigest()}\n".encode()


class RotatedSecrets(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        emulated.join()
        folder = Path("/mnt")
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
        unpack(options.packages, folder / "image")
        cls.authority = Authority(folder / "authority")
        objects = render(OVERLAY, options.build)
        cls.certificates = {one["spec"]["secretName"]: one for one in objects
                            if one["kind"] == "Certificate" and not one["spec"].get("isCA")}
        cls.secrets: Secrets = {name: cls.authority.issue(one) for name, one in cls.certificates.items()}
        cls.secrets["gateway-keys"] = {"gateway.keys": key_line("alice")}
        cls.cluster = Cluster(objects, folder, folder / "image", cls.secrets)
        cls.cluster.headers = {"Authorization": "Bearer alice-key"}
        cls.cluster.tls = ssl.create_default_context(cafile=str(folder / "authority/ca.crt"))
        cls.cluster.tls.check_hostname = False  # pods are called by address here
        try:
            cls.cluster.start()
        except RuntimeError:
            print("\n".join(f"--- {pod.name}\n{pod.log()}" for pod in cls.cluster.pods()))
            raise

    def code_of(self, key: str) -> int:
        before, self.cluster.headers = self.cluster.headers, {"Authorization": f"Bearer {key}"}
        try:
            self.cluster.ask("chat", 0)
            return 200
        except urllib.error.HTTPError as error:
            return error.code
        finally:
            self.cluster.headers = before

    def served(self, pod: emulated.Pod, port: str, role: str) -> bytes:
        """The certificate that a pod shows to a caller who has that of `role`."""
        context = ssl.create_default_context(cafile=str(self.authority.folder / "ca.crt"))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        caller = self.authority.folder / "caller.pem"
        caller.write_bytes(self.secrets[role]["tls.key"] + self.secrets[role]["tls.crt"])
        context.load_cert_chain(str(caller))
        with socket.create_connection((pod.ip, pod.ports[port]), timeout=10) as plain:
            with context.wrap_socket(plain) as tls:
                return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True)).encode()  # type: ignore[arg-type]

    def test_1_answers_come_over_mutual_tls(self) -> None:
        for model in ("chat", "json"):
            self.cluster.await_plan(model, "remote")
        self.assertEqual(self.code_of("alice-key"), 200)
        self.assertEqual(self.code_of("bob-key"), 401)

    def test_1_autoscaling_asks_for_what_the_servers_export(self) -> None:
        """By name and labels, after a request; namespace, job and pod are Prometheus' own."""
        for scaled in self.cluster.of("ScaledObject"):
            for trigger in scaled["spec"]["triggers"]:
                for name, labels in re.findall(r"(aludel_\w+)\{([^}]*)\}", trigger["metadata"]["query"]):
                    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                    pods = re.findall(r'pod=~"([^"]*)"', labels) or [".*"]
                    self.assertEqual(wanted.pop("namespace"), "aludel")
                    job = wanted.pop("job")
                    text = "".join(pod.get("admin", "/metrics") or "" for pod in self.cluster.pods()
                                   if pod.labels["app.kubernetes.io/name"] == job and re.fullmatch(pods[0], pod.name))
                    series = [dict(re.findall(r'(\w+)="([^"]*)"', one))
                              for one in re.findall(rf"^{name}(?:\{{(.*)\}})? ", text, re.MULTILINE)]
                    self.assertTrue(any(wanted.items() <= one.items() for one in series), f"{job}: {name}{wanted}")

    def test_1_autoscalers_read_the_same_of_prometheus(self) -> None:
        """KEDA's triggers and the metrics of HorizontalPodAutoscalers, of one Prometheus at one moment under load."""
        if shutil.which("prometheus") is None:
            print("\nskipped: what autoscalers read: prometheus is not installed (Debian: prometheus)", flush=True)
            self.skipTest("prometheus is not installed")
        scaled = {one["metadata"]["name"]: one["spec"]["triggers"] for one in self.cluster.of("ScaledObject")}
        autoscalers = [one for one in render(f"{OVERLAY}-hpa", options.build)
                       if one["kind"] == "HorizontalPodAutoscaler"]
        self.assertEqual({one["spec"]["scaleTargetRef"]["name"] for one in autoscalers}, set(scaled))
        with Prometheus(self.cluster, Path("/mnt/prometheus")) as prometheus, Load(self.cluster) as load:
            load.await_answered(ANSWERED)
            asks = [(one["spec"]["scaleTargetRef"]["name"], metric["pods"]["metric"]["name"])
                    for one in autoscalers for metric in one["spec"]["metrics"] if "pods" in metric]
            busy = scaled["gateway"][1]["metadata"]["query"]

            def scraped(at: float) -> bool:
                """Whether every pod has been seen often enough for every metric, and an answer in progress."""
                return prometheus.number(busy, at) > 0 and prometheus.number(PREFILL_S, at) > 0 and all(
                    len(prometheus.ask(query_of(rules()[asked], [pod.name for pod in self.cluster.workloads[name]]), at))
                    == len(self.cluster.workloads[name]) for name, asked in asks)

            at = time.time()
            ends = at + 60
            while not scraped(at) and at < ends:
                time.sleep(0.3)
                at = time.time()
            time.sleep(SCRAPED_S)
            seen = {}
            for one in autoscalers:
                name = one["spec"]["scaleTargetRef"]["name"]
                pods = [pod.name for pod in self.cluster.workloads[name]]
                for metric, trigger in zip(one["spec"]["metrics"], scaled[name], strict=True):
                    if "external" in metric:
                        asked = metric["external"]["metric"]["name"]
                        total = prometheus.number(external_query_of(metric["external"]["metric"]), at)
                    else:
                        asked = metric["pods"]["metric"]["name"]
                        samples = prometheus.ask(query_of(rules()[asked], pods), at)
                        self.assertEqual(sorted(sample["metric"]["pod"] for sample in samples), sorted(pods), asked)
                        total = sum(float(sample["value"][1]) for sample in samples)
                    self.assertAlmostEqual(total, prometheus.number(trigger["metadata"]["query"], at), msg=asked)
                    seen[f"{name} {trigger['name']}"] = round(total, 3)
            prefill_s = prometheus.number(PREFILL_S, at)
        print(f"seen under load: {seen}", flush=True)
        self.assertEqual(load.errors, [])
        self.assertGreater(seen["gateway connections"], 0)
        self.assertGreaterEqual(seen["decode-chat desired"], 1)
        self.assertGreater(prefill_s, 0)

    def test_2_secrets_change_under_load(self) -> None:
        fresh: Secrets = {name: self.authority.issue(one) for name, one in self.certificates.items()}
        fresh["gateway-keys"] = {"gateway.keys": key_line("alice") + key_line("bob")}
        with Load(self.cluster) as load:
            time.sleep(1)
            for pod in self.cluster.pods():
                for name in pod.secrets:
                    pod.put_secret(name, fresh[name])
            ends = time.monotonic() + 20
            waiting = [(pod, port, secret) for pod in self.cluster.pods()
                       for port, secret in {"http": "gateway-https", "grpc": f"{pod.name.split('-')[0]}-tls"}.items()
                       if port in pod.ports]
            self.assertEqual(len(waiting), len(self.cluster.pods()))
            type(self).secrets = fresh
            while waiting and time.monotonic() < ends:
                waiting = [(pod, port, secret) for pod, port, secret in waiting
                           if self.served(pod, port,
                                          "decode-tls" if pod.name.startswith("prefill") else "gateway-tls").split()
                           != fresh[secret]["tls.crt"].split()]
                time.sleep(0.2)
            self.assertEqual([pod.name for pod, _, _ in waiting], [])
            load.await_answered(ANSWERED)
        print(f"{len(load.answered)} requests answered while every secret changed, {len(load.errors)} failed",
              flush=True)
        self.assertEqual(load.errors, [])
        self.assertEqual(self.code_of("bob-key"), 200)

    def test_3_a_key_that_is_taken_away_opens_nothing(self) -> None:
        for pod in self.cluster.workloads["gateway"]:
            pod.put_secret("gateway-keys", {"gateway.keys": key_line("bob")})
        ends = time.monotonic() + 20
        while self.code_of("alice-key") != 401:
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.1)

    def test_4_servers_that_start_now_are_understood(self) -> None:
        """New processes have new certificates only, and go on together with old ones."""
        self.cluster.headers = {"Authorization": "Bearer bob-key"}
        for name in ("prefill-base", "decode-chat"):
            pod = self.cluster.workloads[name][0]
            self.assertEqual(pod.end(), 0)
            pod.start(self.cluster.hosts)
        for number in range(4):
            self.cluster.await_plan("chat", "remote")
            self.assertIn("choices", self.cluster.ask("json", number))

    def test_5_the_authority_changes_under_load(self) -> None:
        """Both are trusted, then certificates are the new one's, then only it is trusted."""
        other = Authority(Path("/mnt/other-authority"))
        old, new = ((one.folder / "ca.crt").read_bytes() for one in (self.authority, other))
        issued = {name: other.issue(one) for name, one in self.certificates.items()}
        self.cluster.tls.load_verify_locations(cadata=new.decode())
        with Load(self.cluster) as load:
            for leaves, trusted in ((self.secrets, old + new), (issued, old + new), (issued, new)):
                for pod in self.cluster.pods():
                    for name in set(pod.secrets) & set(issued):
                        pod.put_secret(name, {**leaves[name], "ca.crt": trusted})
                time.sleep(RELOADED_S)
            load.await_answered(ANSWERED)
        print(f"{len(load.answered)} requests answered while the authority changed, {len(load.errors)} failed",
              flush=True)
        self.assertEqual(load.errors, [])
        self.cluster.await_plan("chat", "remote")
        type(self).authority = other

    def test_6_a_stranger_is_refused(self) -> None:
        """With a certificate HTTP/2's first byte comes; without one the same call gets no byte. In TLS 1.3 the
        client's handshake is over before the server refuses, so only reading tells."""
        decode = self.cluster.workloads["decode-chat"][0]
        issued = self.authority.issue(self.certificates["gateway-tls"])
        member = self.authority.folder / "member.pem"
        member.write_bytes(issued["tls.key"] + issued["tls.crt"])
        for certificate in (member, None):
            context = ssl.create_default_context(cafile=str(self.authority.folder / "ca.crt"))
            context.check_hostname = False
            context.set_alpn_protocols(["h2"])
            if certificate:
                context.load_cert_chain(str(certificate))
            with socket.create_connection((decode.ip, decode.ports["grpc"]), timeout=10) as plain:
                with context.wrap_socket(plain) as tls:
                    self.assertEqual(tls.selected_alpn_protocol(), "h2")
                    try:
                        received = tls.recv(1)
                    except (ssl.SSLError, ConnectionError):
                        received = b""
            self.assertEqual(len(received), 1 if certificate else 0, certificate)


if __name__ == "__main__":
    options = main_in_namespaces(__file__, __doc__, OVERLAY)
    unittest.main(argv=[sys.argv[0], *options.rest], verbosity=2)
