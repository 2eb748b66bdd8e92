"""What stands beside figures of a card: its clocks, who shares it, and memory for 16 GB of weights."""

import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from machine import Bundle, Failed, run, say

# Of clocks_event_reasons.active (nvml.h): what slows a card down. Idle, and clocks that an application has set, do not.
THROTTLES = {0x4: "power cap", 0x8: "hardware", 0x20: "temperature", 0x40: "hardware temperature", 0x80: "power brake"}


class Clocks:
    """Samples the card's clocks, power, temperature and what holds them back, five times a second."""

    FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"

    def __init__(self, device: str) -> None:
        self.samples: List[Tuple[float, List[str]]] = []
        self.process: Optional[subprocess.Popen] = None
        if not device.startswith("cuda:") or shutil.which("nvidia-smi") is None:
            return
        self.process = subprocess.Popen(
            ["nvidia-smi", f"--id={device[5:]}", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-lms", "200"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True).start()

    def read(self, lines: Any) -> None:
        for line in lines:
            self.samples.append((time.monotonic(), [cell.strip() for cell in line.split(",")]))

    def between(self, begin: float, end: float) -> Dict[str, Any]:
        """For rows that were measured then; empty where nothing was sampled."""
        cells = [cells for at, cells in self.samples if begin <= at <= end and len(cells) == 5]
        try:
            sm, memory, power, heat = ([float(one[i]) for one in cells] for i in range(4))
            reasons = [int(one[4], 16) for one in cells]
        except ValueError:  # "[N/A]"
            return {}
        if not cells:
            return {}
        held = {name: sum(bool(one & bit) for one in reasons) / len(cells) for bit, name in THROTTLES.items()}
        return {"clocks": {"sm_mhz": [min(sm), sorted(sm)[len(sm) // 2], max(sm)], "memory_mhz": max(memory),
                           "watts": max(power), "celsius": max(heat),
                           "held_back": {name: round(share, 3) for name, share in held.items() if share > 0}}}

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class SharedCard:
    """NVIDIA's multi-process service while two servers are on one card, where it is installed and a program gets the card
    through it: without it they take turns, and the one's kernels wait for the other's slice to end."""

    def __init__(self, bundle: Bundle) -> None:
        self.folder = bundle.work / "mps"
        self.environment: Dict[str, str] = {}
        # A device test that takes a second.
        self.probe = [bundle.program("gpu_tests"), "--gtest_filter=*OpsTest.Silu*/Cuda"]
        self.wanted = bundle.on_card and shutil.which("nvidia-cuda-mps-control") is not None

    @property
    def on(self) -> bool:
        return bool(self.environment)

    def __enter__(self) -> "SharedCard":
        if not self.wanted:
            return self
        self.folder.mkdir(exist_ok=True)
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder), "CUDA_MPS_LOG_DIRECTORY": str(self.folder)}
        os.environ.update(self.environment)
        try:
            # Its daemon keeps what it is given open: a pipe would never end.
            subprocess.run(["nvidia-cuda-mps-control", "-d"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=10, check=True)
            if not re.search(r"\[  PASSED  \] [1-9]", run(self.probe, 20)):
                raise Failed("a program does not get the card through MPS")
        except (Failed, OSError, subprocess.SubprocessError) as error:
            say(f"   two servers will take turns on the card: {error}")
            self.stop()
        return self

    def stop(self) -> None:
        """From here on programs get the card without it."""
        try:
            if self.on:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, timeout=10, check=False,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            say(f"   MPS does not end: {error}")
        finally:
            for name in self.environment:
                os.environ.pop(name, None)
            self.environment = {}

    def __exit__(self, *_: object) -> None:
        self.stop()


def memory_folder(wanted: int, memory: Path = Path("/dev/shm")) -> Optional[Path]:
    """A folder in memory with room for so many bytes. Containers have a small one, which root may make larger."""
    def roomy() -> bool:
        return memory.is_dir() and shutil.disk_usage(memory).free > wanted
    if not roomy() and os.geteuid() == 0 and memory.is_dir() and available_memory() > 2 * wanted:
        size = shutil.disk_usage(memory).used + wanted + (1 << 30)
        try:
            run(["mount", "-o", f"remount,size={size}", str(memory)], 10)
            say(f"{memory}: made larger, {size} bytes")
        except (Failed, OSError) as error:
            say(f"{memory} stays as small as it is: {error}")
    return memory if roomy() else None


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def warm_peers(bundle: Bundle, python: str) -> Optional[subprocess.Popen]:
    """Brings PyTorch's gigabytes from disk while the model is made, so that the peers' time is for measuring. Nothing of it is
    on the card: other parts are timed there."""
    if not bundle.on_card or bundle.small:
        return None
    return subprocess.Popen(["nice", "-n", "10", python, "-c", "import torch, transformers"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            env={**os.environ, "LD_LIBRARY_PATH": bundle.loader_path})
