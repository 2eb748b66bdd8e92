"""aludel-bench ttft with the demo pair: rows of every way over two links, their stages, the page; a stop that leaves no
server behind; servers that do not start; flags that are wrong.

    ttft_test.py --bin build/release/bin
"""

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[2]
PAIR = ["--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat", "--codec", "deploy/demo/codec", "--threads", "1"]
LIMIT_S = 200
binaries = Path()


class Ttft(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, *flags: str) -> subprocess.Popen:
        """With its temporary files in a folder of ours, so that we see what it leaves there."""
        return subprocess.Popen([str(binaries / "aludel-bench"), "ttft", *flags], cwd=ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(self.folder)})

    def run_it(self, *flags: str) -> "tuple[int, str, str]":
        process = self.start(*flags)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def left_over(self) -> List[str]:
        """Folders of configurations and logs."""
        return [path.name for path in self.folder.glob("aludel-ttft-*")]

    def servers(self) -> List[int]:
        """Processes whose configuration is in our folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() + b"/aludel-ttft-" in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                pass
        return found

    def test_measures_every_way(self) -> None:
        figures, page = self.folder / "ttft.json", self.folder / "ttft.html"
        code, out, err = self.run_it(*PAIR, "--formats", "aludel-p2,raw,int8,scd,planner", "--lengths", "64,200", "--links", "20M,none",
                                     "--repeats", "2", "--json", str(figures), "--html", str(page))
        self.assertEqual(code, 0, out + err)
        rows = json.loads(figures.read_text())["rows"]
        self.assertEqual(len(rows), 2 * 2 * (1 + 2 * 4 + 1))
        by_name: Dict[tuple, Dict] = {}
        for row in rows:
            by_name[row["link_bits_per_second"], row["tokens"], row["format"], row["state"]] = row
            self.assertEqual(row["samples"], 2, row)
            seconds = row["seconds"]
            self.assertTrue(0 < seconds["least"] <= seconds["median"] <= seconds["most"], row)
            self.assertAlmostEqual(sum(row["stages"].values()), seconds["median"], delta=1e-3, msg=row)
            if row["format"] == "planner":
                self.assertEqual(sum(row["choices"].values()), 2, row)
                self.assertGreater(row["of_best"], 0, row)
                continue
            # What the way says of itself: who has computed, and what came over the wire.
            if row["state"] == "local":
                self.assertEqual((row["bytes_per_token"], row["recomputed_tokens"]), (0, row["tokens"]), row)
                continue
            self.assertEqual(row["recomputed_tokens"], 1, row)
            self.assertGreater(row["bytes_per_token"], 0, row)
            if row["state"] == "warm":
                self.assertEqual(row["stages"]["prefill"], 0, row)
        # 20 Mb/s bring no more than 2.5 MB a second of the bf16 cache.
        raw = by_name[20e6, 200, "raw", "warm"]
        self.assertGreater(raw["seconds"]["least"], 0.9 * 199 * raw["bytes_per_token"] / 2.5e6, raw)
        local, warm = by_name[20e6, 200, "local", "local"], by_name[20e6, 200, "aludel-p2", "warm"]
        self.assertAlmostEqual(warm["speedup"], local["seconds"]["median"] / warm["seconds"]["median"], places=2)
        self.assertEqual(out.count("the planner took"), 4, out)
        text = page.read_text()
        self.assertEqual(text.count("<figure>"), 4)
        self.assertIsNone(re.search(r"(src|href)=|@import|https?://|<script", text), "one file, nothing from outside")
        self.assertEqual((self.left_over(), self.servers()), ([], []))

    def test_prompts_hold_ids_that_the_tokenizer_knows(self) -> None:
        # Twice as many ids as the tokenizer has.
        model = self.folder / "model"
        subprocess.run([str(binaries / "aludel-bench"), "make-model", "--shape", "tiny", "--out", str(model), "--tokenizer",
                        "deploy/demo/base"], cwd=ROOT, check=True, capture_output=True)
        code, out, err = self.run_it("--producer", str(model), "--consumer", str(model), "--threads", "1", "--formats", "raw",
                                     "--lengths", "64", "--links", "none", "--repeats", "1")
        self.assertEqual(code, 0, out + err)

    def test_a_stop_ends_the_servers_and_keeps_the_figures(self) -> None:
        figures = self.folder / "ttft.json"
        process = self.start(*PAIR, "--formats", "raw", "--lengths", "64", "--links", "none", "--repeats", "1000",
                             "--json", str(figures))
        deadline = time.monotonic() + LIMIT_S
        while len(self.servers()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(len(self.servers()), 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertEqual((self.left_over(), self.servers()), ([], []))
        self.assertTrue(figures.exists())

    def test_servers_that_do_not_start_leave_their_logs(self) -> None:
        code, out, err = self.run_it(*PAIR, "--formats", "raw", "--lengths", "64", "--decode", "planner { fidelity: \"so-so\" }")
        self.assertEqual(code, 2, out + err)
        self.assertIn("aludel-decode ended with code", err)
        self.assertIn("planner.fidelity", err)
        folder, = self.left_over()
        self.assertIn("so-so", (self.folder / folder / "decode.log").read_text())
        self.assertEqual(self.servers(), [])

    def test_a_row_that_is_not_warm_says_so(self) -> None:
        code, out, err = self.run_it(*PAIR, "--formats", "raw", "--lengths", "64", "--links", "none", "--repeats", "1",
                                     "--prefill", "store { memory_bytes: 0 }")
        self.assertEqual(code, 2, out + err)
        self.assertIn("not warm", out)
        self.assertIn("1 of 3 rows", err)

    def test_wrong_flags_are_named(self) -> None:
        for flags, want in (([], "--producer and --consumer"), ([*PAIR, "--lengths", "1024"], "context of --producer, 1024"),
                            ([*PAIR, "--formats", "aludel-p7"], "\"aludel-p7\" is in no --codec"),
                            ([*PAIR, "--links", "fast"], "--links: \"fast\""), ([*PAIR, "--repeats", "0"], "--repeats"),
                            ([*PAIR, "--decode", "speed: 9"], "--decode: line 1"),
                            ([*PAIR, "--bin", "/nowhere"], "--bin names the folder")):
            code, _, err = self.run_it(*flags)
            self.assertEqual(code, 2, err)
            self.assertIn(want, err)
        self.assertEqual(self.left_over(), [])
        code, out, _ = self.run_it("--help")
        self.assertEqual(code, 0)
        self.assertIn("--links LIST", out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    options, rest = parser.parse_known_args()
    binaries = options.bin.resolve()
    unittest.main(argv=[__file__, *rest], verbosity=2)
