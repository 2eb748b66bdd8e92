"""Files that are either whole or absent, and a progress line."""

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator

CHUNK_BYTES = 1 << 20


class HashedFile:
    """Counts and hashes what is written to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> None:
        """Takes bytes or an array's memory."""
        self._file.write(data)
        self._sha256.update(data)
        self.bytes += memoryview(data).nbytes

    def sha256(self) -> str:
        return self._sha256.hexdigest()


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[HashedFile]:
    """Writes beside `path` and renames at the end, after the bytes are on the disk.

    Where the block is left by an exception, Ctrl-C included, nothing stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield HashedFile(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sha256_of(path: Path, progress: Callable[[int], None] = lambda done: None) -> str:
    """Calls `progress` with the number of bytes done, after each chunk."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()


class Progress:
    """Says on standard error how far a step is: redraws a line on a terminal, else writes one in 10 s.

    Steps count bytes; with a `total` of 0 only the time is shown.
    """

    def __init__(self, step: str, total: int) -> None:
        self._step = step
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + (0 if self._terminal else 10)

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (0.2 if self._terminal else 10)
            self._show(self._line(done, now), "\r" if self._terminal else "")

    def finish(self, done: int) -> None:
        self._show(self._line(done, time.monotonic()), "\r" if self._terminal else "")
        if self._terminal:
            print(file=sys.stderr, flush=True)

    def _line(self, done: int, now: float) -> str:
        count = f"{done // 1_000_000} of {self._total // 1_000_000} MB, " if self._total else ""
        return f"{self._step}: {count}{now - self._began:.0f} s"

    def _show(self, line: str, start: str) -> None:
        print(f"{start}{line}", end="\x1b[K" if self._terminal else "\n", file=sys.stderr, flush=True)
