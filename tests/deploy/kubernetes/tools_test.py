"""What tools.py fetches is used only if it is the archive that it should be and runs here; what fails is tried once.

    tools_test.py

npm is a script here: nothing is fetched.
"""

import base64
import hashlib
import io
import os
import sys
import tarfile
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import tools  # noqa: E402

RUNS = b"#!/bin/sh\n[ \"$*\" = \"version --client\" ]\n"
OF_ANOTHER_PROCESSOR = b"\x7fELF\x02\x01\x01" + bytes(57)


def archive(program: bytes) -> bytes:
    """A package as npm has it, with `program` as each of its programs."""
    layer, packed = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as out:
        for path in tools.IN_PACKAGE.values():
            out.writestr(path, program)
    with tarfile.open(fileobj=packed, mode="w:gz") as out:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        out.addfile(entry, io.BytesIO(layer.getvalue()))
    return packed.getvalue()


class Fetched(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.build = self.folder / "build"
        (self.folder / "bin").mkdir()
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        for patch in (mock.patch.dict(os.environ, PATH=path), mock.patch.object(tools, "here", lambda name: ""),
                      mock.patch.object(tools, "FETCH_S", 2)):
            patch.start()
            self.addCleanup(patch.stop)

    def npm(self, script: str) -> None:
        program = self.folder / "bin/npm"
        program.write_text(f"#!/bin/sh\necho >> {self.folder}/calls\n{script}\n")
        program.chmod(0o755)

    def npm_gives(self, program: bytes) -> None:
        data = archive(program)
        (self.folder / "archive").write_bytes(data)
        self.npm(f"cp {self.folder}/archive package.tgz")
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        patch = mock.patch.object(tools, "INTEGRITY", integrity)
        patch.start()
        self.addCleanup(patch.stop)

    def why_not(self, name: str) -> str:
        """As a process of its own would say it."""
        tools.fetch.cache_clear()
        tools.why_not.cache_clear()
        return tools.why_not(name, self.build)

    def calls(self) -> int:
        return (self.folder / "calls").read_text().count("\n")

    def test_programs_are_there_after_one_call(self) -> None:
        self.npm_gives(RUNS)
        self.assertEqual([self.why_not(name) for name in tools.IN_PACKAGE], ["", ""])
        self.assertEqual(self.calls(), 1)
        for name in tools.IN_PACKAGE:
            self.assertEqual(Path(tools.path(name, self.build)).read_bytes(), RUNS)

    def test_another_archive_is_not_run(self) -> None:
        self.npm_gives(f"#!/bin/sh\ntouch {self.folder}/ran\n".encode())
        with mock.patch.object(tools, "INTEGRITY", "sha512-other"):
            self.assertIn("npm gave another", self.why_not("helm"))
        self.assertFalse((self.folder / "ran").exists())
        self.assertFalse(tools.folder_of(self.build).exists())

    def test_programs_of_another_processor_are_named(self) -> None:
        self.npm_gives(OF_ANOTHER_PROCESSOR)
        self.assertRegex(self.why_not("helm"), f"does not run on {os.uname().machine}: .*Exec format error")
        self.assertFalse(tools.folder_of(self.build).exists())

    def test_a_registry_that_is_silent_is_asked_once(self) -> None:
        self.npm("exec sleep 60")
        for name in tools.IN_PACKAGE:
            self.assertIn("npm could not fetch", self.why_not(name))
        self.assertEqual(self.calls(), 1)
        self.npm_gives(RUNS)
        (failed,) = self.build.glob("*.failed")
        old = time.time() - tools.FAILED_S - 1
        os.utime(failed, (old, old))
        self.assertEqual(self.why_not("helm"), "")
        self.assertFalse(failed.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
