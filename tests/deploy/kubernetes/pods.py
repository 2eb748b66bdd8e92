"""Pods of rendered manifests as processes of this machine, each with a root, a user and a network of its own, as a
kubelet would start them: the image below (read-only), its config maps and /etc/hosts above, the address on a bridge.

To be used in a process that has its own mount and network namespace (unshare --mount --net), where join() makes the
bridge. Not here: limits of memory and CPU, seccomp, and addresses that change when a pod comes back.
"""

import hashlib
import itertools
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

Object = Dict[str, Any]
NETWORK = "10.77.0"
NOTICED_S = 1.0  # until everybody knows that a pod is ending
RUN = """
set -e
folder=$1 image=$2 uid=$3 gid=$4
shift 4
mkdir -p "$folder/root"
mount -t overlay none -o "lowerdir=$folder/layer:$image:/" "$folder/root"
mount -t proc none "$folder/root/proc"
mount -t tmpfs none "$folder/root/dev"
while read -r volume target; do
  mount --bind "$folder/$volume" "$folder/root/$target"
done < "$folder/volumes"
for device in null zero urandom random; do
  touch "$folder/root/dev/$device"
  mount --bind /dev/$device "$folder/root/dev/$device"
done
cd /
exec chroot "$folder/root" setpriv --reuid "$uid" --regid "$gid" --groups "$gid" --no-new-privs \\
  --bounding-set=-all -- "$@"
"""


def join() -> None:
    """This process's network is the node's from here on."""
    for line in ("mount --make-rprivate /", "mkdir -p /run/netns", "mount -t tmpfs none /run/netns",
                 "ip link set lo up",
                 "ip link add pods type bridge", f"ip addr add {NETWORK}.1/24 dev pods", "ip link set pods up"):
        subprocess.run(line.split(), check=True)


def matches(selector: Dict[str, Any], labels: Dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector["matchLabels"].items())


class Pod:
    """One pod with one container, from its start to its end."""

    numbers = itertools.count(2)

    def __init__(self, name: str, template: Object, config_maps: Dict[str, Dict[str, str]],
                 secrets: Dict[str, Dict[str, bytes]], folder: Path, image: Path) -> None:
        self.name, self.image, self.folder = name, image, folder / name
        self.labels: Dict[str, str] = template["metadata"]["labels"]
        self.spec = template["spec"]
        (self.container,) = self.spec["containers"]
        self.ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.number = next(Pod.numbers)
        self.ip = f"{NETWORK}.{self.number}"
        self.ready = False
        self.ending = False
        self.process: Optional[subprocess.Popen] = None
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        self.secrets: Dict[str, Path] = {}  # their folders, which may change while the pod runs
        (self.folder / "layer/etc").mkdir(parents=True)
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            target = self.folder / "layer" / mount["mountPath"].lstrip("/")
            target.mkdir(parents=True)
            if "secret" in volume:
                self.secrets[volume["secret"]["secretName"]] = self.folder / mount["name"]
                self.put_secret(volume["secret"]["secretName"], secrets[volume["secret"]["secretName"]])
                continue
            for file, text in config_maps[volume["configMap"]["name"]].items():
                (target / file).write_text(text)
        (self.folder / "volumes").write_text("".join(
            f"{mount['name']} {mount['mountPath']}\n" for mount in self.container["volumeMounts"]
            if "secret" in volumes[mount["name"]]))
        netns = f"pod{self.number}"
        for line in (f"ip netns add {netns}", f"ip link add veth{self.number} type veth peer name eth0 netns {netns}",
                     f"ip link set veth{self.number} master pods up", f"ip -n {netns} addr add {self.ip}/24 dev eth0",
                     f"ip -n {netns} link set eth0 up", f"ip -n {netns} link set lo up"):
            subprocess.run(line.split(), check=True)

    def put_secret(self, name: str, files: Dict[str, bytes]) -> None:
        """As the kubelet writes one, at first and when it changes: files are links through ..data, which is replaced
        at once.
        """
        folder = self.secrets[name]
        folder.mkdir(exist_ok=True)
        fresh = folder / f"..{time.monotonic_ns()}"
        fresh.mkdir()
        (folder / "..data_tmp").symlink_to(fresh.name)
        for file, data in files.items():
            (fresh / file).write_bytes(data)
            os.chown(fresh / file, 0, self.spec["securityContext"]["fsGroup"])
            (fresh / file).chmod(0o440)
        before = (folder / "..data").resolve()
        (folder / "..data_tmp").rename(folder / "..data")
        for file in files:
            if not (folder / file).is_symlink():
                (folder / file).symlink_to(f"..data/{file}")
        if before.name != "..data":
            shutil.rmtree(before)

    def start(self, hosts: Dict[str, List[str]]) -> None:
        (self.folder / "layer/etc/hosts").write_text("127.0.0.1 localhost\n" +
                                                     "".join(f"{ip} {name}\n" for name, ips in hosts.items() for ip in ips))
        user = self.spec["securityContext"]
        values = [f"{one['name']}={one['value']}" for one in self.container.get("env", [])]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", f"pod{self.number}", "unshare", "--mount", "bash", "-c", RUN, "bash",
                 str(self.folder),
                 str(self.image), str(user["runAsUser"]), str(user["runAsGroup"]), "env", "-i", *values,
                 *self.container["command"], *self.container["args"]], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.ending = False
        probe = self.container["startupProbe"]
        self._await(lambda: self.probe("startupProbe"), probe["periodSeconds"] * probe["failureThreshold"],
                    "startup probe")
        threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()
        self._await(lambda: self.ready, 90, "readiness")

    def _await(self, done: Any, limit_s: float, what: str) -> None:
        deadline = time.monotonic() + min(limit_s, 90)
        while not done():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {what}: code {self.process.poll()}\n{self.log()}")
            time.sleep(0.1)

    def _watch(self, process: subprocess.Popen) -> None:
        """The kubelet's readiness probe, and a liveness probe that must never fail."""
        while not self.ending and process.poll() is None:
            self.ready = self.probe("readinessProbe")
            time.sleep(self.container["readinessProbe"]["periodSeconds"] / 4)

    def probe(self, kind: str) -> bool:
        probe = self.container[kind]
        return self.get(probe["httpGet"]["port"], probe["httpGet"]["path"], probe.get("timeoutSeconds", 1)) is not None

    def get(self, port: str, path: str, timeout: float = 5) -> Optional[str]:
        try:
            with urllib.request.urlopen(f"http://{self.ip}:{self.ports[port]}{path}", timeout=timeout) as reply:
                return reply.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def end(self) -> int:
        """SIGTERM; the exit code, or an error when the grace period is over."""
        assert self.process is not None
        self.process.terminate()
        noticed = threading.Timer(NOTICED_S, self._end_noticed)
        noticed.start()
        code = self.process.wait(self.spec["terminationGracePeriodSeconds"])
        noticed.join()
        return code

    def _end_noticed(self) -> None:
        self.ending = True
        self.ready = False

    def runs_from(self, image: Path) -> bool:
        """Whether the process runs the program of that image, to the byte."""
        assert self.process is not None
        command = self.container["command"][0]
        with open(f"/proc/{self.process.pid}/exe", "rb") as running, open(f"{image}{command}", "rb") as wanted:
            return hashlib.file_digest(running, "sha256").digest() == hashlib.file_digest(wanted, "sha256").digest()

    def log(self) -> str:
        return "\n".join((self.folder / "log").read_text().splitlines()[-15:])

    def calls(self, others: Dict[str, "Pod"]) -> Set[Tuple["Pod", int]]:
        """The pods, and their ports, that this one has connections to; `others` by address."""
        assert self.process is not None
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                host, port = remote.split(":")
                ip = ".".join(str(byte) for byte in reversed(bytes.fromhex(host[-8:])))
                ours = int(local.split(":")[1], 16) in self.ports.values()
                if state == "01" and not ours and ip in others:
                    found.add((others[ip], int(port, 16)))
        return found


def hosts_of(pods: List[Pod], services: List[Object]) -> Dict[str, List[str]]:
    """What cluster DNS says of headless services: SERVICE, POD.SERVICE, and both with NAMESPACE.svc."""
    found: Dict[str, List[str]] = {}
    for service in services:
        for pod in pods:
            chosen = matches({"matchLabels": service["spec"]["selector"]}, pod.labels)
            if service["spec"].get("clusterIP") == "None" and chosen:
                all_of = service["metadata"]["name"]
                for name in (all_of, f"{pod.name}.{all_of}"):
                    for whole in (name, f"{name}.{service['metadata']['namespace']}.svc"):
                        found.setdefault(whole, []).append(pod.ip)
    return found


def why_not() -> str:
    if os.geteuid() != 0:
        return "this is not root"
    tried = subprocess.run(["unshare", "--mount", "--net", "bash", "-c",
                            "mount --make-rprivate / && ip link add pods type bridge && "
                            "ip link add veth0 type veth peer name veth1"],
                           capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"no networks of its own: {tried.stderr.strip()}"
