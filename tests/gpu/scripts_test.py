"""What tests/gpu/run.sh decides without a device: who has how much time, what is kept of earlier runs and of commands that
were cut short, where cuBLASLt is."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import card  # noqa: E402
import cublas  # noqa: E402
import engine  # noqa: E402
import kernels  # noqa: E402
import measure  # noqa: E402
import profile_kernels  # noqa: E402
import sanitizer  # noqa: E402
import ttft  # noqa: E402
from machine import Bundle, Failed, run  # noqa: E402
from model import Model  # noqa: E402
from report import Report  # noqa: E402

HEAD = {"device": "card", "driver": "1", "commit": "abc", "date": "2026-01-01"}
LIBRARY = "libcublasLt.so.13"


class Time(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (Path(folder.name) / "MANIFEST").write_text("cuda 13.0\n")
        self.bundle = Bundle(Path(folder.name), "cuda:0", True, Path(folder.name))

    def test_all_parts_fit_in_eight_minutes(self) -> None:
        report = Report(Path("unused"), HEAD)
        parts = measure.parts_of(self.bundle, report, Model(self.bundle))
        self.assertEqual(sum(part.share for part in parts), 480)

    def test_parts_have_their_shares_and_what_is_left_before_them(self) -> None:
        shares = [60.0, 30.0, 30.0]
        self.assertEqual(measure.limit(shares, 0, 120, 120), 60)
        self.assertEqual(measure.limit(shares, 1, 120, 110), 80)  # the first took 10
        self.assertEqual(measure.limit(shares, 2, 120, 30), 30)
        self.assertEqual(measure.limit(shares, 2, 120, 20), 20)  # one before it took longer
        self.assertEqual(measure.limit(shares, 0, 240, 240), 120)

    def test_one_part_alone_has_all_the_time(self) -> None:
        self.assertEqual(measure.limit([20.0], 0, 480, 480), 480)

    def test_a_command_that_hangs_is_ended_and_its_output_kept(self) -> None:
        with self.assertRaisesRegex(Failed, "took longer than 1 s") as failed:
            run(["sh", "-c", "echo so far; sleep 30"], 1)
        self.assertEqual(failed.exception.output, "so far\n")


class Results(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "results.json"
        earlier = Report(self.path, HEAD)
        earlier.part = "ops"
        earlier.add("a", 1.23456789, "share", None, "command")
        earlier.missing("b", "share", None, "command", "it\nfailed")
        earlier.write()

    def test_a_value_stays_when_its_part_fails_later(self) -> None:
        report = Report(self.path, HEAD)
        report.missing("a", "share", None, "command", "it failed again")
        report.missing("b", "share", None, "command", "it failed again")
        report.missing("b", "share", None, "command", "its part failed")
        self.assertEqual([(row["value"], row.get("reason")) for row in report.rows.values()],
                         [(1.2346, None), (None, "it failed again")])

    def test_rows_measured_now_replace_those_of_the_file(self) -> None:
        report = Report(self.path, HEAD)
        self.assertFalse(report.complete("ops", ["a"]))
        report.part = "ops"
        report.add("b", 2, "share", None, "command")
        report.write()
        self.assertEqual([(row["name"], row["value"]) for row in json.loads(self.path.read_text())["benchmarks"]],
                         [("a", 1.2346), ("b", 2)])
        self.assertTrue(Report(self.path, HEAD).complete("ops", ["a", "b"]))
        self.assertFalse(Report(self.path, HEAD).complete("ops", ["c"]))
        self.assertFalse(Report(self.path, HEAD).complete("engine", []))

    def test_another_device_or_commit_begins_anew(self) -> None:
        for key in ("device", "commit"):
            self.assertEqual(Report(self.path, {**HEAD, key: "other"}).rows, {})
        self.assertEqual(list(Report(self.path, {**HEAD, "date": "2026-01-02"}).rows), ["a", "b"])

    def test_rows_of_another_driver_say_so(self) -> None:
        report = Report(self.path, {**HEAD, "driver": "2"})
        report.add("b", 2, "share", None, "command")
        self.assertEqual([row.get("driver") for row in report.rows.values()], ["1", None])

    def test_what_is_asked_for_again_is_forgotten(self) -> None:
        report = Report(self.path, HEAD)
        report.forget("ops")
        self.assertEqual(report.rows, {})


class CutShort(unittest.TestCase):
    WHOLE = json.dumps({"context": {"gemm_gflop_s": "2.5", "caches": [{"level": 1}]},
                        "benchmarks": [{"name": "A/1/real_time", "of_gemm": 0.5}, {"name": "A/2/real_time", "of_gemm": 0.25}]},
                       indent=2)

    def test_a_whole_file_is_read(self) -> None:
        context, rows = kernels.finished("a line before\n" + self.WHOLE)
        self.assertEqual(context["gemm_gflop_s"], "2.5")
        self.assertEqual({name: row["of_gemm"] for name, row in rows.items()}, {"A/1": 0.5, "A/2": 0.25})

    def test_what_had_finished_is_read_wherever_it_ends(self) -> None:
        begin = self.WHOLE.index('"benchmarks": [') + len('"benchmarks": [')
        first, second = (self.WHOLE.index("}", self.WHOLE.index(name)) + 1 for name in ("A/1", "A/2"))
        for end in range(len(self.WHOLE)):
            if end < begin:
                self.assertRaises(ValueError, kernels.finished, self.WHOLE[:end])
            else:
                self.assertEqual(len(kernels.finished(self.WHOLE[:end])[1]), (end >= first) + (end >= second), end)

    def test_a_benchmark_that_is_ended_says_so(self) -> None:
        context, rows, lacking = kernels.benchmark(["sh", "-c", f"echo '{self.WHOLE[:-20]}'; sleep 30"], 1)
        self.assertEqual(list(rows), ["A/1"])
        self.assertIn("took longer than 1 s", lacking or "")
        with self.assertRaisesRegex(Failed, "code 3"):
            kernels.benchmark(["sh", "-c", "exit 3"], 1)


    def test_repetitions_are_one_row_with_their_spread(self) -> None:
        name = "Decode/batch:1"
        rows = [{"name": name, "run_type": "iteration", "real_time": time, "tokens/s": rate} for time, rate in ((9.0, 4.0), (11.0, 2.0))]
        rows.append({"name": f"{name}_mean", "run_type": "aggregate", "real_time": 10.0, "tokens/s": 3.0})
        _, found = kernels.finished(json.dumps({"context": {}, "benchmarks": rows}, indent=2))
        self.assertEqual(list(found), [name])
        self.assertEqual((found[name]["real_time"], found[name]["tokens/s"], found[name]["spread"]), (10, 3, 0.2))


class Sanitizers(unittest.TestCase):
    TESTS = "[       OK ] Devices/OpsTest.Gemm/Cuda (12 ms)\n[       OK ] Devices/OpsTest.Rope/Cuda (3 ms)\n"

    def test_a_summary_is_believed(self) -> None:
        self.assertEqual(sanitizer.errors_of(self.TESTS + "========= ERROR SUMMARY: 0 errors\n"), (0, 2))
        self.assertEqual(sanitizer.errors_of("========= RACECHECK SUMMARY: 3 hazards displayed\n"), (3, 0))

    def test_what_was_cut_short_counts_for_the_tests_that_had_run(self) -> None:
        self.assertEqual(sanitizer.errors_of(self.TESTS), (0, 2))
        self.assertEqual(sanitizer.errors_of("========= Invalid __global__ read of size 4 bytes\n" + self.TESTS), (1, 2))
        self.assertEqual(sanitizer.errors_of("=========     at Norm\n"), (None, 0))

    def test_a_clean_partial_result_is_a_row(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "MANIFEST").write_text("")
            bundle = Bundle(Path(folder), "cuda:0", False, Path(folder))
            report = Report(Path(folder) / "results.json", HEAD)
            with mock.patch.object(sanitizer, "run", side_effect=Failed("took longer than 5 s", self.TESTS)), \
                    mock.patch.object(sanitizer.shutil, "which", return_value="/bin/compute-sanitizer"):
                sanitizer.sanitizer(bundle, report, measure.Clock(5))
            row = report.rows["sanitizer_racecheck"]
            self.assertEqual((row["value"], row["tests"], row["partial"]), (0, 2, "took longer than 5 s"))


class Card(unittest.TestCase):
    def test_clocks_are_those_of_the_time_between(self) -> None:
        clocks = card.Clocks("cpu")
        self.assertEqual(clocks.between(0, 9), {})
        clocks.samples = [(1, ["300", "2600", "90.0", "40", "0x1"]), (2, ["1980", "2600", "690", "60", "0x0"]),
                          (3, ["1500", "2600", "700", "61", "0x4"]), (4, ["[N/A]"])]
        self.assertEqual(clocks.between(2, 9)["clocks"],
                         {"sm_mhz": [1500, 1980, 1980], "memory_mhz": 2600, "watts": 700, "celsius": 61,
                          "held_back": {"power cap": 0.5}})

    def test_profiles_are_read_by_kernel(self) -> None:
        head = '"ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread"\n"","","nsecond","register/thread"\n'
        rows = '"0","void aludel::cuda::(anonymous namespace)::Bf16Product<1>(aludel::cuda::SkinnyArgs)","1,200","96"\n' \
               '"1","void aludel::cuda::(anonymous namespace)::Bf16Product<1>(aludel::cuda::SkinnyArgs)","1,400","96"\n' \
               '"2","void aludel::cuda::MmaAttention<aludel::cuda::DecodeShape<128>>(aludel::cuda::AttentionArgs)","900","128"\n'
        found = profile_kernels.figures_of("==PROF== Connected\n" + head + rows)
        self.assertEqual(found, {"Bf16Product": {"microseconds": 1300, "registers": 96, "launches": 2},
                                 "MmaAttention": {"microseconds": 900, "registers": 128, "launches": 1}})

    def test_a_metric_that_the_profiler_does_not_know_is_left_out(self) -> None:
        command = ["ncu", "--metrics", ",".join(profile_kernels.METRICS), "bench"]
        tried: List[List[str]] = []

        def run(command: List[str], _: float) -> str:
            tried.append(command)
            if profile_kernels.OPTIONAL in command[2]:
                raise Failed("code 1", "==ERROR== Failed to find metric")
            return "figures"

        with mock.patch.object(profile_kernels, "run", run):
            self.assertEqual(profile_kernels.measure(command, measure.Clock(60), 1), "figures")
        self.assertEqual(len(tried), 2)
        self.assertEqual(set(profile_kernels.METRICS) - set(tried[1][2].split(",")), {profile_kernels.OPTIONAL})

    def share(self, probed: Any) -> Tuple[bool, bool, List[List[str]]]:
        """Whether MPS is on inside, whether it is named outside, and the commands that were given to it."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "MANIFEST").write_text("")
            bundle = Bundle(Path(folder), "cuda:0", False, Path(folder))
            with mock.patch.object(card.shutil, "which", return_value="/bin/mps"), \
                    mock.patch.object(card.subprocess, "run") as daemon, mock.patch.object(card, "run", side_effect=probed), \
                    mock.patch.dict("os.environ"):
                with card.SharedCard(bundle) as shared:
                    inside = shared.on and os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(Path(folder) / "mps")
                left = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
            return inside, left, [call.args[0] for call in daemon.call_args_list]

    def test_mps_is_used_where_a_program_gets_the_card_through_it(self) -> None:
        begin, end = ["nvidia-cuda-mps-control", "-d"], ["nvidia-cuda-mps-control"]
        self.assertEqual(self.share(["[  PASSED  ] 3 tests."]), (True, False, [begin, end]))
        self.assertEqual(self.share(["[  PASSED  ] 0 tests."]), (False, False, [begin, end]))
        self.assertEqual(self.share(Failed("took longer")), (False, False, [begin, end]))

    def test_servers_that_fail_under_mps_take_turns(self) -> None:
        shared = mock.MagicMock(on=True)
        shared.__enter__.return_value = shared
        shared.stop.side_effect = lambda: setattr(shared, "on", False)
        with mock.patch.object(ttft, "SharedCard", return_value=shared), mock.patch.object(ttft, "Study") as study:
            study.return_value.bench.side_effect = [Failed("no device"), ["rows"]]
            ttft.ttft(mock.MagicMock(on_card=True), mock.MagicMock(), mock.MagicMock(), measure.Clock(60))
        self.assertEqual(study.return_value.card_shared_by, "time slices")
        study.return_value.add_all.assert_called_once_with(["rows"])

    def test_what_warms_up_is_waited_for_and_then_ended(self) -> None:
        for command, code in (["true"], 0), (["sleep", "30"], -9):
            process = subprocess.Popen(command)
            measure.settle(process, 0.5)
            self.assertEqual(process.returncode, code)

    def test_memory_that_is_roomy_is_taken_as_it_is(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(card.memory_folder(1, Path(folder)), Path(folder))
            with mock.patch.object(card, "available_memory", return_value=0):
                self.assertIsNone(card.memory_folder(1 << 60, Path(folder)))


class WhereResultsGo(unittest.TestCase):
    def test_out_gets_a_copy_and_the_tree_is_gone_on_with(self) -> None:
        tree = measure.ROOT / "tests/gpu/results/card.json"
        with mock.patch.dict("os.environ", {"OUT": "/back"}):
            self.assertEqual(measure.results_of(None, "card.json"), (tree, Path("/back/card.json")))
            self.assertEqual(measure.results_of(Path("mine.json"), "card.json"), (Path("mine.json"), None))
        with mock.patch.dict("os.environ", {"OUT": ""}):
            self.assertEqual(measure.results_of(None, "card.json"), (tree, None))

    def test_both_have_the_same_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            one, copy = Path(folder) / "one.json", Path(folder) / "out" / "copy.json"
            Report(one, HEAD, copy).write()
            self.assertEqual(one.read_bytes(), copy.read_bytes())


class WhereCublasIs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def put(self, below: str) -> Path:
        (self.root / below).mkdir(parents=True)
        (self.root / below / LIBRARY).touch()
        return self.root / below

    def test_wheels_and_toolkits_are_looked_through(self) -> None:
        with mock.patch.dict("os.environ", {"CUDA_HOME": "/opt/cuda"}):
            candidates = list(map(str, cublas.folders("13", ["/site"])))
        for folder in ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/opt/cuda/lib64",
                       "/site/nvidia/cu13/lib", "/site/nvidia/cublas/lib"):
            self.assertIn(folder, candidates)

    def test_the_first_that_can_be_loaded_is_taken(self) -> None:
        broken, wheel = self.put("broken"), self.put("wheel")

        def loads(_: str, folder: Optional[Path]) -> bool:
            return folder == wheel

        self.assertEqual(cublas.find(LIBRARY, [self.root / "none", broken, wheel], loads), wheel)

    def test_nothing_is_named_where_the_loader_finds_it(self) -> None:
        self.assertIsNone(cublas.find(LIBRARY, [self.put("wheel")], lambda _, folder: folder is None))

    def test_a_machine_without_it_is_told_what_to_do(self) -> None:
        with self.assertRaisesRegex(Failed, f"{LIBRARY} is neither.*nvidia-cublas.*LD_LIBRARY_PATH"):
            cublas.find(LIBRARY, [self.put("broken")], lambda *_: False)

    def test_the_loader_itself_is_asked(self) -> None:
        self.assertTrue(cublas.loads("libc.so.6", None))
        self.put("broken")
        self.assertFalse(cublas.loads(LIBRARY, self.root / "broken"))


class FirstTokens(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (Path(folder.name) / "MANIFEST").write_text("")
        bundle = Bundle(Path(folder.name), "cpu", True, Path(folder.name))
        self.report = Report(Path(folder.name) / "results.json", HEAD)
        self.study = ttft.Study(bundle, self.report, Model(bundle))
        self.study.path_gbps = 2.0

    @staticmethod
    def row(form: str, state: str, seconds: float, **more: Any) -> Dict[str, Any]:
        return {"link_bits_per_second": 4e9, "tokens": 256, "format": form, "state": state, "samples": 3,
                "seconds": {"median": seconds, "least": 0.9 * seconds, "most": 1.1 * seconds}, "bytes_per_token": 10.0, "recomputed_tokens": 1,
                "stages": {"prefill": 0.0}, **more}

    def test_rows_of_the_bench_become_rows_of_the_report(self) -> None:
        lacking = {"link_bits_per_second": 4e9, "tokens": 256, "format": "raw", "state": "warm", "samples": 0, "reason": "not warm"}
        self.study.add_all([self.row("local", "local", 2.0), self.row("aludel-p2", "warm", 0.5, speedup=4.0), lacking])
        row = self.report.rows["ttft_speedup_warm_256_4g"]
        self.assertEqual((row["value"], row["oracle_seconds"], row["emulated"], row["p"]), (4, 2, True, 2))
        self.assertEqual((row["spread"], self.report.rows["ttft_oracle_256"]["spread"]), (0.4, 0.2))
        self.assertEqual(self.report.value("ttft_oracle_256"), 2)
        self.assertEqual(self.report.rows["ttft_speedup_warm_256_4g_raw"]["reason"], "not warm")

    def test_links_that_lack_a_row_are_measured(self) -> None:
        self.assertEqual(self.study.wanted(), [1, 4])
        for name in self.study.names_over(1):
            self.report.add(name, 1, "ratio", None, "command")
        self.assertEqual(self.study.wanted(), [4])


class Peers(unittest.TestCase):
    def test_both_sides_are_of_one_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.json"
            (Path(folder) / "MANIFEST").write_text("")
            bundle = Bundle(Path(folder), "cpu", True, Path(folder))
            earlier = Report(path, HEAD)
            for name in ("prefill_rate_128", "decode_rate_batch_1"):
                earlier.add(name, 10, "tokens/s", None, "command")
            earlier.write()
            report = Report(path, HEAD)

            def forward(*_: object) -> None:
                report.add("prefill_rate_128", 60, "tokens/s", None, "command", spread=0.01)
                report.add("decode_rate_batch_1", 8, "tokens/s", None, "command")

            printed = 'a warning\n{"gemm": {"tflops": 800.0, "spread": 0.01}}\n{"torch": {"prefill": 30, "prefill_spread": 0.02, "decode": 2, "version": "2"}}\n'
            with mock.patch.object(engine, "run", side_effect=Failed("took longer", printed)), \
                    mock.patch.object(engine, "forward", side_effect=forward):
                engine.peers(bundle, report, Model(bundle), measure.Clock(1))
            self.assertEqual([report.value(f"{what}_vs_torch") for what in ("prefill", "decode")], [2, 4])
            self.assertEqual(report.rows["prefill_vs_torch"]["spread"], 0.03)
            self.assertEqual((report.value("gemm_peak_torch"), report.rows["gemm_peak_torch"]["spread"]), (800, 0.01))
            self.assertEqual(report.rows["decode_vs_transformers"]["reason"], "took longer")


if __name__ == "__main__":
    unittest.main(verbosity=2)
