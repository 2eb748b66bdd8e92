"""The model that is measured: an 8B shape with random weights and codecs for it, made while other parts run; or the demo
pair at small sizes."""

import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import List, Optional

from card import memory_folder
from machine import ROOT, Bundle, Clock, Failed, run, say, text_of

SHAPE = "llama-8b"
SHAPE_BYTES = 16_100_000_000
RECOMPUTED_LAYERS = 2


class Model:
    """`producer` and `consumer` are one model of the 8B shape: what is measured is speed, and speed alone."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.worker = ThreadPoolExecutor(1)
        self.making: Optional[Future] = None  # and `shallow`, whose kernels are the model's
        self.coding: Optional[Future] = None
        self.shallow = self.producer = self.consumer = ROOT / "deploy/demo/base"
        self.codec = ROOT / "deploy/demo/codec"
        self.operating_point = "the demo pair's own artifact"
        if bundle.small:
            self.consumer = ROOT / "deploy/demo/chat"
            return
        self.folder = (memory_folder(2 * SHAPE_BYTES) or bundle.work) / f"aludel-gpu-{os.getpid()}"
        self.folder.mkdir(parents=True)
        self.producer = self.consumer = self.folder / "model"
        self.shallow = self.folder / "shallow"
        self.codec = self.folder / "codec"

    def start(self, clock: Clock) -> None:
        """Begins to write 16 GB and then the codecs, within the time of the whole run."""
        if self.bundle.small:
            return
        self.making = self.worker.submit(self.make, clock)
        self.coding = self.worker.submit(self.make_codecs, clock)

    def make(self, clock: Clock) -> None:
        for out, layers in ((self.producer, []), (self.shallow, ["--layers", "2"])):
            command = [self.bundle.program("aludel-bench"), "make-model", "--shape", SHAPE, "--out", str(out),
                       "--tokenizer", str(ROOT / "deploy/demo/base"), *layers]
            say(f"making the model: {text_of(command)}")
            run(command, clock.left())

    def make_codecs(self, clock: Clock) -> None:
        for preset in ("scd", "aludel"):
            command = [self.bundle.program("aludel-bench"), "make-codec", "--preset", preset, "--producer", str(self.producer),
                       "--consumer", str(self.consumer), "--out", str(self.codec), "--recomputed-layers", str(RECOMPUTED_LAYERS)]
            made = run(command, clock.left()).strip()
            say(made)
            if preset == "aludel":
                self.operating_point = re.sub(r"^wrote \S+ ", "", made)

    def wait(self, clock: Clock, codecs: bool = False) -> None:
        """Until it is there, and its codecs where they are wanted; Failed where it cannot be. A part whose time it outlasts
        goes without it, and the next may find it."""
        for made in [self.making, self.coding] if codecs else [self.making]:
            try:
                if made is not None:
                    made.result(timeout=max(1.0, clock.left()))
            except TimeoutError:
                raise Failed("making the model took longer than the time of this part") from None

    def formats(self) -> List[str]:
        """The default first."""
        return [f"aludel-p{RECOMPUTED_LAYERS}", "raw", "int4", "scd"]

    def stop(self) -> None:
        """Waits for what is being made, which ends with the run's time."""
        self.worker.shutdown(cancel_futures=True)
        if not self.bundle.small:
            shutil.rmtree(self.folder, ignore_errors=True)
