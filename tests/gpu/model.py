"""The model that is measured: an 8B shape with random weights and codecs for it, made while other parts run; or the demo
pair at small sizes."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import List, Optional

from machine import ROOT, Bundle, Clock, Failed, run, say, text_of

SHAPE = "llama-8b"
SHAPE_BYTES = 16_100_000_000
NATIVE_LAYERS = 2


class Model:
    """`producer` and `consumer` are one model of the 8B shape: what is measured is speed, and speed alone."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.making: Optional[subprocess.Popen] = None
        self.producer = self.consumer = ROOT / "deploy/demo/base"
        self.codec = ROOT / "deploy/demo/codec"
        self.operating_point = "the demo pair's own artefact"
        if bundle.small:
            self.consumer = ROOT / "deploy/demo/chat"
            return
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 * SHAPE_BYTES
        self.folder = (memory if roomy else bundle.work) / f"aludel-gpu-{os.getpid()}"
        self.folder.mkdir(parents=True)
        self.producer = self.consumer = self.folder / "model"
        self.codec = self.folder / "codec"

    def start(self) -> None:
        """Begins to write it; 16 GB are there after half a minute."""
        if self.bundle.small:
            return
        command = [self.bundle.program("aludel-bench"), "make-model", "--shape", SHAPE, "--out", str(self.producer),
                   "--tokenizer", str(ROOT / "deploy/demo/base")]
        say(f"making the model: {text_of(command)}")
        self.making = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)

    def wait(self, clock: Clock) -> None:
        """Until it is there; Failed where it could not be made. May be called again."""
        if self.making is None:
            return
        try:
            _, errors = self.making.communicate(timeout=max(1.0, min(120.0, clock.left())))
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failed("make-model took longer than its time") from None
        if self.making.returncode != 0:
            raise Failed(f"make-model: code {self.making.returncode}: {errors.strip()[-300:]}")
        for preset in ("paper", "aludel"):
            command = [self.bundle.program("aludel-bench"), "make-codec", "--preset", preset, "--producer", str(self.producer),
                       "--consumer", str(self.consumer), "--out", str(self.codec), "--native-layers", str(NATIVE_LAYERS)]
            made = run(command, min(60.0, clock.left()))
            say(made.strip())
            if preset == "aludel":
                self.operating_point = re.sub(r"^wrote \S+ ", "", made.strip())
        self.making = None

    def formats(self) -> List[str]:
        """The default first."""
        return [f"aludel-p{NATIVE_LAYERS}", "raw", "int4", "paper"]

    def stop(self) -> None:
        if self.making is not None and self.making.poll() is None:
            self.making.kill()
            self.making.wait()
        if not self.bundle.small:
            shutil.rmtree(self.folder, ignore_errors=True)
