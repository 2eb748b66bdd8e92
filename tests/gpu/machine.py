"""What parts of a run share: the bundle, the machine, commands with a limit."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]


class Failed(RuntimeError):
    """A command that did not do what it should; the text says why, `output` is what it printed until then."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


def say(text: str) -> None:
    print(text, flush=True)


def text_of(command: List[str]) -> str:
    """For people and for the results: without the folder that the bundle was unpacked to."""
    return " ".join(shlex.quote(Path(part).name if "/bin/" in part else part) for part in command)


def run(command: List[str], limit: float, environment: Optional[Dict[str, str]] = None) -> str:
    """What the command printed to stdout. Failed where it fails or takes longer, it and all that it started ended."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **(environment or {})})
    try:
        output, errors = process.communicate(timeout=max(1.0, limit))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise Failed(f"took longer than {limit:.0f} s: {text_of(command)}", output) from None
    if process.returncode != 0:
        last = "; ".join((output + errors).strip().splitlines()[-4:])
        raise Failed(f"code {process.returncode}: {last}: {text_of(command)}", output)
    return output


def describe_device(device: str) -> Tuple[str, str]:
    """Name and driver of what computes."""
    if device.startswith("cuda:"):
        try:
            line = run(["nvidia-smi", f"--id={device[5:]}", "--query-gpu=name,driver_version", "--format=csv,noheader"], 30)
            name, driver = line.strip().split(", ")
            return name, driver
        except (Failed, OSError, ValueError) as error:
            say(f"nvidia-smi does not say what the device is: {error}")
            return device, "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip(), "none"
    return "cpu", "none"


class Clock:
    """The time that is left for everything."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()


class Bundle:
    """The unpacked bundle, and what one run measures with it."""

    def __init__(self, folder: Path, device: str, small: bool, work: Path) -> None:
        self.folder = folder.resolve()
        self.device = device
        self.small = small
        self.work = work
        lines = (self.folder / "MANIFEST").read_text().splitlines()
        self.manifest = {key: value for key, _, value in (line.partition(" ") for line in lines)}
        self.threads = 1 if small else min(16, os.cpu_count() or 1)
        self.loader_path = os.environ.get("LD_LIBRARY_PATH", "")  # as we were started

    @property
    def on_card(self) -> bool:
        return self.device.startswith("cuda:")

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def commit(self) -> str:
        """Of the bundle; of the source tree where the bundle was made from a tarball."""
        if self.manifest.get("commit"):
            return self.manifest["commit"]
        try:
            return run(["git", "rev-parse", "HEAD"], 10).strip()
        except (Failed, OSError):
            return "unknown"


def fail(text: str) -> None:
    print(f"gpu: {text}", file=sys.stderr)
    sys.exit(2)
