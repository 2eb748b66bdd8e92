"""Our data plane against ucx_perftest with the same transport and message sizes, taken in turn in one run; with --cap against
iperf3 over a link that the kernel slows down.

    link_throughput.py --bin build/release/bin [--sizes 65536,1048576,8388608] [--rounds 5]
    link_throughput.py --bin build/release/bin --cap 1gbit         # needs root: its own network namespace
    link_throughput.py --bin build/release/bin --cap 50mbit --handoff

--handoff: not the bare data plane but whole handoffs of a long prompt of the demo in `raw`, which the prefill server has in
its cache: their bytes over the time to the first token, everything included. All are commands for a machine that is otherwise idle. Needs ucx_perftest (ucx-utils); --cap needs iperf3 and tc.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from planner_sweep import Trio, fresh_prompt  # noqa: E402

SECONDS = 1.0


def ours(binaries: Path, size: int, transports: str, window: int) -> float:
    """Megabytes (10^6 bytes) of payload per second."""
    text = subprocess.run([str(binaries / "aludel-bench"), "link", "--size", str(size), "--window", str(window),
                           "--milliseconds", str(int(SECONDS * 1000)), "--transports", transports, "--places", "1",
                           "--kinds", "ucx", "--no-bounds"],
                          check=True, capture_output=True, text=True).stdout
    return float(re.search(r": ([\d.]+) MB/s", text).group(1))


def perftest(size: int, transports: str, window: int, expected: float) -> float:
    """The same of ucx_perftest, which counts in 2^20 bytes."""
    environment = dict(os.environ, UCX_TLS=transports, UCX_NET_DEVICES="lo", UCX_RNDV_SCHEME="get_zcopy",
                       UCX_MAX_RNDV_RAILS="1", UCX_MAX_EAGER_RAILS="1")
    port = str(20000 + os.getpid() % 10000)
    server = subprocess.Popen(["ucx_perftest", "-p", port], env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        count = max(20, int(SECONDS * expected * 1e6 / size))
        client = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", "ucp_am_bw", "-s", str(size), "-n", str(count),
                  "-w", str(count // 4), "-O", str(window), "-f"]
        text = subprocess.run(client, env=environment, check=True, capture_output=True, text=True).stdout
        # iterations, typical/average/overall latency, average and overall bandwidth, message rates
        numbers = [line.split() for line in text.splitlines() if re.match(r"^(Final:)?\s*[\d.\s]+$", line)][-1]
        return float(numbers[-3]) * (1 << 20) / 1e6
    finally:
        server.kill()
        server.wait()


def compare(options: argparse.Namespace) -> int:
    worst = 10.0
    for transports in options.transports.split(";"):
        for size in (int(one) for one in options.sizes.split(",")):
            pairs = []
            for _ in range(options.rounds):
                mine = ours(options.bin, size, transports, options.window)
                pairs.append((mine, perftest(size, transports, options.window, mine)))
            # Of two figures taken one right after the other: the machine's own speed moves between the rounds.
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            mine, theirs = (statistics.median(column) for column in zip(*pairs))
            worst = min(worst, ratio)
            print(f"{transports} {size} bytes: ours {mine:.0f} MB/s, ucx_perftest {theirs:.0f} MB/s, "
                  f"median of {options.rounds} ratios {ratio:.2f}", flush=True)
    print(f"RESULT: at least {worst:.2f} of ucx_perftest")
    return 0 if worst >= 0.9 else 1


def handoffs(options: argparse.Namespace) -> float:
    """Payload megabytes per second of the whole time to the first token; the median."""
    with tempfile.TemporaryDirectory(prefix="aludel-cap-") as folder:
        trio = Trio(options.bin, Path(folder), rate=0)
        try:
            rates = []
            for _ in range(options.rounds):
                prompt = fresh_prompt(random.Random(len(rates)), 550)
                for _ in range(2):  # the second time from the cache of frames
                    report = trio.report(prompt, "raw")
                rates.append(report["payload_bytes"] / report["ttft"] / 1e6)
            return statistics.median(rates)
        finally:
            trio.stop()


def under_cap(options: argparse.Namespace) -> int:
    """Inside a namespace whose loopback the kernel shapes; for one payload with a network's packets and little of a burst."""
    mtu, burst = ("1500", "16kb") if options.handoff else ("65536", "256kb")
    subprocess.run(["ip", "link", "set", "lo", "mtu", mtu, "up"], check=True)
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", options.cap, "burst", burst,
                    "latency", "100ms"], check=True)
    server = subprocess.Popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        report = subprocess.run(["iperf3", "-c", "127.0.0.1", "-t", "5", "-J"], check=True, capture_output=True, text=True)
        theirs = json.loads(report.stdout)["end"]["sum_received"]["bits_per_second"] / 8e6
    finally:
        server.kill()
        server.wait()
    if options.handoff:
        mine = handoffs(options)
    else:
        mine = statistics.median(ours(options.bin, 1 << 20, "tcp", options.window) for _ in range(options.rounds))
    print(f"cap {options.cap}: ours {mine:.2f} MB/s, iperf3 {theirs:.2f} MB/s: {100 * mine / theirs:.1f} %")
    return 0 if mine >= 0.97 * theirs else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--sizes", default="65536,1048576,8388608")
    parser.add_argument("--transports", default="tcp;posix,cma,tcp", help="UCX lists, separated by semicolons")
    parser.add_argument("--window", type=int, default=16, help="messages under way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cap", help="rate for tc, e.g. 1gbit")
    parser.add_argument("--handoff", action="store_true", help="with --cap: whole handoffs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    if options.cap and not options.inside:
        return subprocess.call(["unshare", "--net", sys.executable, __file__, *sys.argv[1:], "--inside"])
    return under_cap(options) if options.cap else compare(options)


if __name__ == "__main__":
    sys.exit(main())
