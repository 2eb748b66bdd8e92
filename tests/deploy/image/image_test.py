"""The container image: what is in it, that two builds give one digest, and that the demo's four servers run from its
files alone, as a user without rights over a read-only root, and answer.

    image_test.py --image build/release/image/aludel.oci.tar --packages build/release/packages

Root is not needed where the kernel lets users have namespaces; exits with 77 and a reason where it does not.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[3]
USER = 65532
MEGABYTES = 60
SPARE = .25  # for what a newer compiler or library adds
FIRST_ANSWER_S = 5.0
STARTS = 3  # the best counts: other tests may run beside this one
SERVERS = {"prefill-demo": "aludel-prefill", "decode-chat": "aludel-decode", "decode-json": "aludel-decode",
           "gateway-demo": "aludel-gateway"}
FOR_CARDS = "prefill-card.textproto"  # the demo's, of a machine with a card
given: Any = None
folder = Path()

# As root: this machine's, or that of a user namespace.
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1/root" "$1/root"
mount -t proc none "$1/root/proc"
mount -t tmpfs none "$1/root/dev"
for device in null zero urandom random; do
  touch "$1/root/dev/$device"
  mount --bind /dev/$device "$1/root/dev/$device"
done
mount -o remount,bind,ro "$1/root"
ip link set lo up
shift
exec "$@"
"""
# The program is a user without rights, here and in a user namespace of its own.
RUN = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}", "--root"]
AS_USER = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]


class Image:
    """The archive, as a registry would have it."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            self.blobs = {member.name: archive.extractfile(member).read()  # type: ignore
                          for member in archive if member.isfile()}
        (self.entry,) = json.loads(self.blobs["index.json"])["manifests"]
        self.manifest = self.blob(self.entry)
        self.config = self.blob(self.manifest["config"])

    def data(self, descriptor: Dict[str, Any]) -> bytes:
        data = self.blobs["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(data) == descriptor["size"]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
        return data

    def blob(self, descriptor: Dict[str, Any]) -> Dict[str, Any]:
        return json.loads(self.data(descriptor))

    def layers(self) -> List[bytes]:
        return [gzip.decompress(self.data(one)) for one in self.manifest["layers"]]

    def members(self) -> List[tarfile.TarInfo]:
        return [member for layer in self.layers() for member in tarfile.open(fileobj=io.BytesIO(layer))]


class Contents(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.image = Image(given.image)
        cls.members = cls.image.members()
        cls.files = {member.name for member in cls.members if not member.isdir()}

    def test_layers_are_what_the_configuration_says(self) -> None:
        self.assertEqual(["sha256:" + hashlib.sha256(layer).hexdigest() for layer in self.image.layers()],
                         self.image.config["rootfs"]["diff_ids"])

    def test_it_is_small(self) -> None:
        packed = sum(one["size"] for one in self.image.manifest["layers"])
        print(f"{packed / 1e6:.1f} MB packed, demo included", flush=True)
        self.assertLessEqual(packed, (MEGABYTES - SPARE) * 1e6)

    def test_the_demo_s_codec_has_what_servers_choose_and_nothing_else(self) -> None:
        folder = "usr/share/aludel/demo/codec/"
        layer = self.image.layers()[-1]  # the demo's
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            artifact = json.load(archive.extractfile(f"{folder}artifact.json"))  # type: ignore
        self.assertEqual([one["name"] for one in artifact["formats"]], ["aludel-p2"])
        named = set(re.findall(r'"file": "([^"]+)"', json.dumps(artifact)))
        self.assertEqual({name[len(folder):] for name in self.files if name.startswith(folder)},
                         {*named, "artifact.json"})

    def test_there_is_no_shell_and_nothing_that_raises_rights(self) -> None:
        programs = {name for name in self.files if "/bin/" in name or "/sbin/" in name}
        self.assertEqual(programs, {f"usr/bin/{name}" for name in SERVERS.values()})
        for member in self.members:
            self.assertEqual((member.uid, member.gid), (0, 0), member.name)
            self.assertFalse(member.mode & (stat.S_ISUID | stat.S_ISGID), member.name)
            if member.name != "tmp" and not member.issym():
                self.assertFalse(member.mode & 0o022, member.name)

    def test_links_lead_somewhere(self) -> None:
        names = {member.name for member in self.members}
        for member in self.members:
            if member.issym():
                target = os.path.normpath(os.path.join("/", os.path.dirname(member.name), member.linkname))
                self.assertIn(target.lstrip("/"), names, member.name)

    def test_it_starts_as_the_containerfile_says(self) -> None:
        text = (ROOT / "deploy/image/Containerfile").read_text().rsplit("FROM scratch", 1)[1].replace("\\\n", " ")
        config = self.image.config["config"]
        said = {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in text.splitlines() if " " in line}
        self.assertEqual(said["USER"], config["User"])
        self.assertEqual(config["User"], f"{USER}:{USER}")
        self.assertEqual([said["ENV"]], config["Env"])
        self.assertEqual(json.loads(said["CMD"]), config["Cmd"])
        self.assertEqual(said["STOPSIGNAL"], config["StopSignal"])
        labels = dict(re.findall(r'([\w.]+)="([^"]*)"', said["LABEL"]))
        for name, value in config["Labels"].items():
            if name.rsplit(".", 1)[1] not in ("created", "revision"):
                self.assertEqual(labels.get(name), value, name)
        self.assertRegex(config["Labels"]["org.opencontainers.image.revision"], r"^([0-9a-f]{40}|unknown)$")

    def test_for_cards_it_asks_for_the_driver_and_is_the_same_otherwise(self) -> None:
        sys.path.insert(0, str(ROOT / "deploy/image"))
        from make_image import configuration
        for_cpus, for_cards = (configuration("1", "abc", "now", variant) for variant in ("cpu", "cuda"))
        asked = [one for one in for_cards["Env"] if one not in for_cpus["Env"]]
        self.assertEqual(asked, ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"])
        self.assertEqual({**for_cards, "Env": []}, {**for_cpus, "Env": []})

    def test_the_bill_has_every_file_and_its_package(self) -> None:
        bill = json.loads(given.image.with_name(given.image.name + ".spdx.json").read_text())
        self.assertEqual(bill["spdxVersion"], "SPDX-2.3")
        listed = {one["fileName"][2:]: {sum["algorithm"]: sum["checksumValue"] for sum in one["checksums"]}
                  for one in bill["files"]}
        written_here = {name for name in self.files if name.startswith("var/lib/dpkg/")
                        or name.endswith("sbom.spdx.json")}
        written_here |= {"etc/passwd", "etc/group", "etc/nsswitch.conf"}
        regular = {member.name for member in self.members if member.isfile()}
        self.assertEqual(set(listed), regular - written_here)
        for layer in self.image.layers():
            with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                for member in archive:
                    if member.name in listed:
                        data = archive.extractfile(member).read()  # type: ignore
                        self.assertEqual(hashlib.sha256(data).hexdigest(), listed[member.name]["SHA256"], member.name)
        ids = [one["SPDXID"] for one in [*bill["packages"], *bill["files"]]]
        self.assertEqual(len(ids), len(set(ids)))
        for one in bill["relationships"]:
            self.assertLessEqual({one["spdxElementId"], one["relatedSpdxElement"]}, {*ids, "SPDXRef-DOCUMENT"})
        contained = [one["relatedSpdxElement"] for one in bill["relationships"]
                     if one["relationshipType"] == "CONTAINS"]
        self.assertEqual(sorted(contained), sorted(one["SPDXID"] for one in bill["files"]))
        scanned = {name.rsplit("/", 1)[1] for name in self.files if name.startswith("var/lib/dpkg/status.d/")}
        linked = {one["relatedSpdxElement"][len("SPDXRef-Package-"):] for one in bill["relationships"]
                  if one["relationshipType"] == "DYNAMIC_LINK"}
        self.assertEqual({re.sub(r"[^\w.-]", "-", name) for name in scanned}, linked)
        for name in scanned:
            self.assertIn(f"usr/share/doc/{name}/copyright", self.files)

    def test_two_builds_give_one_digest(self) -> None:
        with tempfile.TemporaryDirectory() as other:
            said = subprocess.run([sys.executable, str(ROOT / "deploy/image/make_image.py"), "--packages",
                                   str(given.packages),
                                   "--out", f"{other}/again.tar", "--revision",
                                   self.image.config["config"]["Labels"]["org.opencontainers.image.revision"]],
                                  cwd="/", env={**os.environ, "SOURCE_DATE_EPOCH": str(self.members[0].mtime),
                                                "TZ": "Asia/Tokyo"},
                                  capture_output=True, text=True, check=True).stdout
            self.assertEqual(said.split(": ")[0], self.image.entry["digest"])
            self.assertEqual(Path(f"{other}/again.tar").read_bytes(), given.image.read_bytes())


class Running(unittest.TestCase):
    """Inside the namespaces, with the image's files in folder/root."""

    def setUp(self) -> None:
        self.processes: Dict[str, subprocess.Popen] = {}
        self.addCleanup(self.stop)

    def start(self) -> None:
        for name, program in SERVERS.items():
            with open(folder / f"{name}.log", "wb") as log:
                command = [f"/usr/bin/{program}", "--config", f"/etc/aludel/{name}.textproto"]
                self.processes[name] = subprocess.Popen(
                    [*(AS_USER if given.by_root else []), *RUN, str(folder / "root"), "--wd", "/", *command],
                    env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> List[int]:
        for process in self.processes.values():
            process.terminate()
        codes = [process.wait(60) for process in self.processes.values()]
        self.processes.clear()
        return codes

    def get(self, url: str, body: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith("{") else {"text": text}

    def first_answer(self) -> Dict[str, Any]:
        """The first answer over a handed-over cache; servers that are not there yet are asked again."""
        question = json.loads((ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[0])
        body = {"model": "chat", "temperature": 0, "max_tokens": 8,
                "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
        deadline = time.monotonic() + 60
        while True:
            try:
                for port in (7101, 7201, 7211):
                    self.get(f"http://127.0.0.1:{port}/ready")
                if 'state="ready",target="127.0.0.1:7100"} 1' in self.get("http://127.0.0.1:7201/metrics")["text"]:
                    return self.get("http://127.0.0.1:8080/v1/chat/completions", body)
            except (urllib.error.URLError, OSError):
                pass
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                self.fail(f"{ended} ended, or a minute passed:\n" + "\n".join(
                    (folder / f"{name}.log").read_text()[-2000:] for name in SERVERS))
            time.sleep(0.02)

    def check_confinement(self) -> None:
        for name, process in self.processes.items():
            proc = Path(f"/proc/{process.pid}")
            status = dict(re.findall(r"^(\w+):\t(.*)$", (proc / "status").read_text(), re.MULTILINE))
            self.assertEqual(int(status["CapEff"], 16), 0, name)
            self.assertEqual((proc / "uid_map").read_text().split()[0::2], [str(USER), "1"], name)
            # All that it sees is the image, and the root of its namespace cannot write there either.
            self.assertEqual({one.name for one in (proc / "root").iterdir()},
                             {"bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr", "var"}, name)
            for place in ("tmp/file", "etc/file", "var/lib/aludel/file"):
                with self.assertRaisesRegex(OSError, "Read-only file system"):
                    (proc / "root" / place).write_text("")

    def test_the_quartet_answers_soon(self) -> None:
        took = []
        for _ in range(STARTS):
            began = time.monotonic()
            self.start()
            answer = self.first_answer()
            took.append(time.monotonic() - began)
            self.assertEqual(answer["aludel"]["plan"], "remote", answer)
            self.assertTrue(answer["choices"][0]["message"]["content"])
            self.check_confinement()
            self.assertEqual(self.stop(), [0] * len(SERVERS))
            if took[-1] <= FIRST_ANSWER_S:
                break
        print(f"quartet from image to first answer: {', '.join(f'{one:.2f} s' for one in took)}", flush=True)
        self.assertLessEqual(min(took), FIRST_ANSWER_S)


    def test_without_a_card_a_server_says_what_is_missing(self) -> None:
        """Both where its programs have CUDA's kernels and where they have not; never a crash, never a silent CPU."""
        command = ["/usr/bin/aludel-prefill", "--config", f"/etc/aludel/{FOR_CARDS}"]
        done = subprocess.run([*(AS_USER if given.by_root else []), *RUN, str(folder / "root"), "--wd", "/", *command],
                              env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (1, 2), done.stdout)
        self.assertRegex(done.stdout, r"cuda:0.*(install an NVIDIA driver|without CUDA|no CUDA)")


def enter_command() -> List[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c",
            ENTER, "bash"]


def run_inside(arguments: List[str]) -> int:
    """Unpacks the image and runs the tests of Running in namespaces over it."""
    with tempfile.TemporaryDirectory(dir=given.scratch) as place:
        (Path(place) / "root").mkdir()
        began = time.monotonic()
        for layer in Image(given.image).layers():
            with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
                archive.extractall(Path(place) / "root")
        print(f"unpacked in {time.monotonic() - began:.2f} s", flush=True)
        configurations = Path(place) / "root/etc/aludel"
        text = (configurations / "prefill-demo.textproto").read_text()
        (configurations / FOR_CARDS).write_text(text.replace("engine {", 'engine {\n  device: "cuda:0"', 1))
        os.chmod(place, 0o755)
        done = subprocess.run([*enter_command(), place, sys.executable, __file__, "--inside", place, *arguments,
                               "Running"],
                              check=False)
        return done.returncode


def why_not() -> str:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "root/dev").mkdir(parents=True)
        (Path(place) / "root/proc").mkdir()
        os.chmod(place, 0o755)
        as_user = AS_USER if os.geteuid() == 0 else []
        tried = subprocess.run([*enter_command(), place, *as_user, *RUN, "/", "true"], capture_output=True, text=True,
                               check=False)
    return "" if tried.returncode == 0 else f"no namespaces for users: {tried.stderr.strip()}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--packages", type=lambda path: Path(path).resolve(), required=True,
                        help="folder of the .deb files")
    parser.add_argument("--scratch", type=Path, help="where the image is unpacked, default TMPDIR")
    parser.add_argument("--by-root", action="store_true", help="the namespaces are this machine's root's")
    parser.add_argument("--inside", type=Path, help="namespaces have been made over this folder")
    given, rest = parser.parse_known_args()
    if given.inside:
        folder = given.inside
        unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
    contents = unittest.main(argv=[sys.argv[0], *(rest or ["Contents"])], verbosity=2, exit=False).result
    if not contents.wasSuccessful():
        sys.exit(1)
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    sys.exit(run_inside(["--image", str(given.image), "--packages", str(given.packages),
                         *(["--by-root"] if os.geteuid() == 0 else [])]))
