"""The Debian packages: lintian, manual pages, the units' hardening; and their whole life on a machine that has just booted:
installed, started, asked, frozen, upgraded, removed and purged.

    packages_test.py --packages build/release/packages
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).resolve().parent))
from booted_root import BootedRoot, why_not  # noqa: E402

EXPOSURE = "30"  # systemd-analyze's 3.0, of 10
UNITS = ["aludel-prefill@demo", "aludel-decode@chat", "aludel-decode@json", "aludel-gateway@demo"]
CONFFILES = ["prefill-demo", "decode-chat", "decode-json", "gateway-demo"]
given = Path()


def command(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: code {done.returncode}: {done.stdout}")
    return done.stdout


def packages() -> Dict[str, Path]:
    found = {path.name.split("_")[0]: path for path in given.glob("*.deb")}
    assert set(found) == {"aludel-server", "aludel-gateway", "aludel-tools"}, found
    return found


def needs(program: str) -> None:
    if shutil.which(program) is None:
        print(f"\nskipped: {program} is missing", flush=True)
        raise unittest.SkipTest(f"{program} is missing")


class Contents(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        for path in packages().values():
            command("dpkg-deb", "--extract", str(path), str(cls.folder))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.temporary.cleanup()

    def test_lintian_finds_nothing(self) -> None:
        needs("lintian")
        self.assertEqual(command("lintian", "--allow-root", "--fail-on", "error,warning",
                                 *map(str, packages().values())), "")

    def test_every_program_has_a_manual_page(self) -> None:
        needs("man")
        programs = sorted((self.folder / "usr/bin").iterdir())
        self.assertEqual(len(programs), 7)
        for program in programs:
            page = command("env", "LC_ALL=C", "man", "--warnings", "-l",
                           str(self.folder / f"usr/share/man/man1/{program.name}.1.gz"))
            self.assertNotIn("warning:", page)
            self.assertRegex(page, rf"NAME\n +{program.name} +- +\w+")
            self.assertRegex(page, r"\n +--\w+", program.name)

    def test_units_expose_little(self) -> None:
        needs("systemd-analyze")
        units = sorted((self.folder / "usr/lib/systemd/system").iterdir())
        self.assertEqual(len(units), 3)
        for unit in units:
            verdict = command("systemd-analyze", "security", "--offline=true", f"--root={self.folder}", "--no-pager",
                              f"--threshold={EXPOSURE}", unit.name.replace("@", "@name"))
            print(verdict.strip().splitlines()[-1])

    def test_libraries_of_packing_video_are_suggested_where_programs_load_them(self) -> None:
        for package, program in (("aludel-server", "aludel-prefill"), ("aludel-tools", "aludel-calibrate")):
            loaded = re.search(rb"libavcodec\.so\.(\d+)\0", (self.folder / "usr/bin" / program).read_bytes())
            suggested = command("dpkg-deb", "-f", str(packages()[package]), "Suggests").strip().split(", ")
            found = [name for name in suggested if re.match("libavcodec|libx265", name)]
            if loaded is None:
                self.assertEqual(found, [], package)
            else:
                self.assertIn(f"libavcodec{loaded[1].decode()}", found, package)
                self.assertTrue(any(re.fullmatch(r"libx265-\d+", name) for name in found), package)

    def test_configurations_name_what_is_installed(self) -> None:
        for name in CONFFILES:
            text = (self.folder / f"etc/aludel/{name}.textproto").read_text()
            self.assertIn(f"--config /etc/aludel/{name}.textproto", text)
            folders = re.findall(r'(?:directory|artifact): "([^"]+)"', text)
            self.assertTrue(folders, name)
            for folder in folders:
                self.assertTrue((self.folder / folder.lstrip("/")).is_dir(), folder)

    def test_changelog_is_of_this_version(self) -> None:
        changelog = (ROOT / "deploy/packages/changelog").read_text()
        for path in packages().values():
            self.assertTrue(changelog.startswith(f"aludel ({command('dpkg-deb', '-f', str(path), 'Version').strip()}) "))


class Life(unittest.TestCase):
    """Needs root; everything happens in namespaces of its own."""

    def setUp(self) -> None:
        reason = why_not()
        if reason:
            print(f"\nskipped: {reason}", flush=True)
            self.skipTest(reason)
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        for path in packages().values():
            shutil.copy(path, self.folder)
        self.make_upgrade(packages()["aludel-server"])

    def make_upgrade(self, package: Path) -> None:
        """The same package as version 99, with a new conffile of aludel-decode@json."""
        unpacked = self.folder / "unpacked"
        command("dpkg-deb", "-R", str(package), str(unpacked))
        control = unpacked / "DEBIAN/control"
        control.write_text(re.sub(r"^Version: .*$", "Version: 99", control.read_text(), flags=re.MULTILINE))
        with open(unpacked / "etc/aludel/decode-json.textproto", "a", encoding="utf-8") as file:
            file.write("# of version 99\n")
        command("dpkg-deb", "-Znone", "-b", str(unpacked), str(self.folder / "upgrade.deb"))
        shutil.rmtree(unpacked)

    def test_from_installation_to_purge(self) -> None:
        with BootedRoot(self.folder) as root:
            self.root = root
            try:
                self.install()
                self.start()
                self.ask(0)
                self.check_confinement()
                self.freeze()
                self.refuse_a_wrong_configuration()
                self.upgrade()
                self.remove_and_purge()
            except BaseException:
                print(root.try_run("journalctl", "--no-pager", "-n", "60").stdout)
                raise

    def install(self) -> None:
        self.root.run("bash", "-c", "dpkg -i /run/given/aludel-*.deb")
        self.assertIn("aludel-server", self.root.run("getent", "passwd", "aludel-server"))
        self.assertIn("aludel-gateway", self.root.run("getent", "passwd", "aludel-gateway"))
        for folder, mode in (("/etc/aludel/server-secrets", "750 root aludel-server"),
                             ("/etc/aludel/gateway-secrets", "750 root aludel-gateway"),
                             ("/var/lib/aludel/models", "755 root root")):
            self.assertEqual(self.root.run("stat", "-c", "%a %U %G", folder).strip(), mode, folder)
        units = [f"{unit}.service" for unit in UNITS]
        self.assertEqual(self.root.run("systemd-analyze", "verify", "--man=yes", *units), "")
        for unit in UNITS:
            self.assertEqual(self.root.show(unit, "ActiveState"), "inactive", "a package starts nothing by itself")

    def start(self) -> None:
        """READY=1 is what `systemctl start` waits for: the servers are ready when it returns."""
        self.root.run("systemctl", "start", *UNITS)
        for port in (7101, 7201, 7211):
            self.root.run("curl", "-fsS", f"http://127.0.0.1:{port}/ready")
        self.root.run("curl", "-fsS", "http://127.0.0.1:8080/health")
        self.root.run("systemctl", "reload", "aludel-gateway@demo")
        for unit in UNITS:
            self.assertEqual(self.root.show(unit, "Type"), "notify")
            self.assertEqual(self.root.show(unit, "NRestarts"), "0")

    def ask(self, number: int) -> None:
        """The question of that number of the demo, which is answered over a handed-over cache."""
        self.root.await_text('state="ready",target="127.0.0.1:7100"} 1', "curl", "-sS", "http://127.0.0.1:7201/metrics")
        self.root.await_text('"status":"ready"', "curl", "-sS", "http://127.0.0.1:8080/ready?model=chat")
        question = json.loads((ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[number])
        body = {"model": "chat", "temperature": 0, "max_tokens": 8,
                "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
        # Right after a restart the gateway may still see the old server: a 503 is asked again, as clients do (and -S would
        # write that 503 before the answer).
        answer = json.loads(self.root.run("curl", "-fs", "--retry", "5", "http://127.0.0.1:8080/v1/chat/completions",
                                          "-H", "Content-Type: application/json", "-d", json.dumps(body)))
        self.assertEqual(answer["aludel"]["plan"], "remote", answer)
        self.assertTrue(answer["choices"][0]["message"]["content"])

    def check_confinement(self) -> None:
        """What the kernel says of the running processes, whatever the unit files promise."""
        for unit in UNITS:
            user = "aludel-gateway" if "gateway" in unit else "aludel-server"
            status = dict(re.findall(r"^(\w+):\t(.*)$", self.root.run(
                "cat", f"/proc/{self.root.show(unit, 'MainPID')}/status"), re.MULTILINE))
            number = self.root.run("id", "-u", user).strip()
            self.assertEqual(set(status["Uid"].split()), {number}, unit)
            self.assertEqual(status["NoNewPrivs"], "1")
            self.assertEqual(status["Seccomp"], "2")
            allowed = 1 << 10 if "gateway" in unit else 0  # CAP_NET_BIND_SERVICE
            self.assertEqual(int(status["CapBnd"], 16), allowed, unit)
            self.assertEqual(int(status["CapEff"], 16), allowed, unit)

    def freeze(self) -> None:
        """A process that stands still sends no WATCHDOG=1, and is replaced."""
        unit = "aludel-decode@json"
        self.root.run("mkdir", "-p", f"/run/systemd/system/{unit}.service.d")
        self.root.run("bash", "-c", "printf '[Service]\\nWatchdogSec=5\\nTimeoutAbortSec=1\\n' "
                                    f"> /run/systemd/system/{unit}.service.d/short.conf")
        self.root.run("systemctl", "daemon-reload")
        self.root.run("systemctl", "restart", unit)
        pid = self.root.show(unit, "MainPID")
        self.root.run("kill", "-STOP", pid)
        self.root.await_text("1", "systemctl", "show", "--value", "--property=NRestarts", unit)
        self.root.await_text("active\n", "systemctl", "show", "--value", "--property=ActiveState", unit)
        self.assertNotEqual(self.root.show(unit, "MainPID"), pid)
        self.root.run("rm", "-r", f"/run/systemd/system/{unit}.service.d")
        self.root.run("systemctl", "daemon-reload")

    def refuse_a_wrong_configuration(self) -> None:
        self.root.run("bash", "-c", "echo 'no_such_setting: 1' > /etc/aludel/decode-wrong.textproto")
        self.assertNotEqual(self.root.try_run("systemctl", "start", "aludel-decode@wrong").returncode, 0)
        self.assertEqual(self.root.show("aludel-decode@wrong", "ExecMainStatus"), "2")
        self.assertEqual(self.root.show("aludel-decode@wrong", "NRestarts"), "0")
        self.root.run("rm", "/etc/aludel/decode-wrong.textproto")

    def upgrade(self) -> None:
        """What the operator changed stays, and no server stops before a restart is asked for."""
        self.root.run("bash", "-c", "echo '# ours' >> /etc/aludel/decode-chat.textproto")
        before = {unit: self.root.show(unit, "MainPID") for unit in UNITS}
        self.root.run("dpkg", "-i", "/run/given/upgrade.deb")
        self.assertEqual({unit: self.root.show(unit, "MainPID") for unit in UNITS}, before)
        self.assertIn("# ours", self.root.run("cat", "/etc/aludel/decode-chat.textproto"))
        self.assertIn("# of version 99", self.root.run("cat", "/etc/aludel/decode-json.textproto"))
        self.ask(1)
        self.root.run("systemctl", "restart", "aludel-decode@chat")
        self.ask(2)

    def remove_and_purge(self) -> None:
        self.root.run("systemctl", "enable", *UNITS)
        names = ["aludel-server", "aludel-gateway", "aludel-tools"]
        self.root.run("dpkg", "--remove", *names)
        for unit in UNITS:
            self.assertIn(self.root.show(unit, "ActiveState"), ("inactive", "failed"), unit)
            self.assertIn(self.root.show(unit, "Result"), ("success", ""), unit)
        self.assertIn("# ours", self.root.run("cat", "/etc/aludel/decode-chat.textproto"))
        self.root.run("dpkg", "--purge", *names)
        self.assertEqual(self.root.run("find", "/etc", "/usr", "/var/lib", "-name", "*aludel*", "-newer", "/run/given",
                                       "-not", "-path", "/var/lib/systemd/*").split(), [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the .deb files")
    options, rest = parser.parse_known_args()
    given = options.packages.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
