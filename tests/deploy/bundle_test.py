"""A bundle, carried to another folder, runs there with nothing of this machine but glibc: no LD_LIBRARY_PATH, every
library from the bundle, the servers hand a prompt over and answer.

    bundle_test.py --bundle build/release/aludel-0.1.0-linux-x86_64
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path
from typing import Set

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from stack import Stack  # noqa: E402

GLIBC = {"ld-linux-x86-64", "libc", "libm", "libdl", "libpthread", "librt", "libresolv", "libutil", "libnsl", "libanl",
         "libnss_files", "libnss_dns", "libnss_compat", "libnss_systemd", "libnss_myhostname"}
OPTIONAL = {"libdnnl", "libOpenCL"}  # oneDNN, where this machine has it
bundle = Path()


def library(path: str) -> str:
    return re.sub(r"\.so.*$|-2\.\d+$", "", Path(path).name)


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="aludel-bundle-")
        cls.root = Path(cls.folder.name).resolve() / "elsewhere"
        shutil.copytree(bundle, cls.root, symlinks=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def run_it(self, *command: str) -> str:
        done = subprocess.run(command, env={}, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def foreign(self, paths: Set[str]) -> Set[str]:
        return {path for path in paths if not path.startswith(f"{self.root}/") and library(path) not in GLIBC}

    def test_finds_every_library_in_itself(self) -> None:
        binaries = sorted((self.root / "bin").iterdir())
        self.assertGreater(len(binaries), 5)
        for binary in binaries:
            lines = self.run_it("/usr/bin/ldd", str(binary))
            self.assertNotIn("not found", lines, binary.name)
            self.assertEqual(self.foreign(set(re.findall(r"=> (/\S+)", lines))), set(), binary.name)

    def test_programs_say_who_they_are(self) -> None:
        for name in ("aludel-prefill", "aludel-decode", "aludel-gateway"):
            self.assertRegex(self.run_it(str(self.root / "bin" / name), "--version"), rf"^{name} \d")
        for name in ("aludel-bench", "aludel-inspect", "aludel-eval"):
            self.assertIn(name, self.run_it(str(self.root / "bin" / name), "--help"))

    def test_says_what_it_is_and_needs(self) -> None:
        manifest = dict(line.split(" ", 1) for line in (self.root / "MANIFEST").read_text().splitlines())
        self.assertRegex(manifest["glibc"], r"^2\.\d+$")
        self.assertLessEqual({"version", "commit", "cuda", "architectures"}, set(manifest))

    def test_knows_the_normal_forms_of_unicode(self) -> None:
        """Of ICU's data the bundle keeps what NFKC needs: the ligature's two letters are tokens of the plain text."""
        with tempfile.TemporaryDirectory() as folder:
            for file in (ROOT / "deploy/demo/chat").iterdir():
                if file.name != "tokenizer.json":
                    (Path(folder) / file.name).symlink_to(file)
            tokenizer = json.loads((ROOT / "deploy/demo/chat/tokenizer.json").read_text())
            tokenizer["normalizer"] = {"type": "NFKC"}
            (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
            self.run_it(str(self.root / "bin/aludel-inspect"), folder)

    def test_serves_a_handoff(self) -> None:
        environment = dict(os.environ)
        os.environ.clear()
        try:
            with tempfile.TemporaryDirectory(prefix="aludel-stack-") as folder:
                stack = Stack(self.root / "bin", Path(folder), {})
                try:
                    stack.wait_until_ready()
                    self.ask(stack.url)
                    for process in stack.processes.values():
                        maps = Path(f"/proc/{process.pid}/maps").read_text()
                        mapped = set(re.findall(r"(/\S+\.so\S*)$", maps, re.MULTILINE))
                        self.assertLessEqual({library(path) for path in self.foreign(mapped)}, OPTIONAL)
                finally:
                    stack.stop()
        finally:
            os.environ.update(environment)

    def ask(self, url: str) -> None:
        question = json.loads((ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[0])
        body = {"model": "chat", "temperature": 0, "max_tokens": 8,
                "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.loads(reply.read())
        self.assertEqual(answer["aludel"]["plan"], "remote", answer)
        self.assertTrue(answer["choices"][0]["message"]["content"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="folder that make_bundle.cmake made")
    options, rest = parser.parse_known_args()
    bundle = options.bundle.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
