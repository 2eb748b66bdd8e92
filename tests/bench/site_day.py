"""A day of load at a site whose decode server may have prompts computed by prefill servers at two other sites, across real,
capped links (network namespaces and veth pairs) of which it may take a part: is the planner's choice as soon as the best
fixed one, in each hour, and do the links carry no more than they may?

    site_day.py --bin build/release/bin [--scale .01]

    build/release/bin/aludel-bench make-model --shape stories-42m --out /tmp/small --tokenizer deploy/demo/base
    site_day.py --bin build/release/bin --model /tmp/small --json day.json

The second is what the figures want: of the demo's model a prompt is computed in the time that processes take to speak of it.
On two cores give --sites east: each site computes on one core, and two of them on the same one delay each other as no sites do.
It takes 80 minutes, or one choice at a time whenever there is time: what was played is in a file, by parts, and what is missing is
played when the command is given again.

    for choice in planner local remote from-150 from-400; do
      site_day.py --bin build/release/bin --model /tmp/small --resume day.runs --only $choice
    done
    site_day.py --bin build/release/bin --model /tmp/small --resume day.runs     # nothing is left to play: the table

Prompts come at random times, by a day's curve, `--scale` of a day long, and have lengths of a lognormal distribution. The planner
(`by_prediction`) is compared with fixed choices, which requests force: always here (`local`), at a site whenever a limit is not
reached (`remote`), and so from a length on (`from-N`); each sees the same arrivals and lengths. What this machine computes in a
second is measured first: of that --peak is asked for at noon, and the limits are a share of the bytes that all prompts would
take then.

The day is cut into parts that are played under each choice in turn, in random order, so that what else the machine does falls on
all alike. With --only it does not: then only a machine that does nothing else gives figures to compare. --parts 24 --hours 18-24
plays the evening alone. The planner has servers and links of its own, so that it knows only what its own requests have taught it. Each
part begins with new servers, those of the planner first in every other one, and full buckets of the limits; the planner is taught by
--teach requests before it. (Two decode servers of one configuration differ by 5 to 20 % in what a prefill takes, by where their
memory happens to lie: a day on one pair of processes says as much of them as of the choices. So take many parts.)

An hour's interval is that of 95 % of resamplings of its requests, in runs of five, which keep what choices had for one request
together; the best fixed choice is found anew in each. "Never over 1.05 times" is taken to mean: in no hour is the whole
interval of the planner's mean over the best fixed choice's mean above --within, whichever fixed choice was best in that hour; and
over the day the mean is at most --within times that of the choice that is best over the day. With --than worst it is only that the
mean over the day is at most --within times that of the worst fixed choice, which a short run can tell on a machine that has other
work, too. Exits with 1 where that does not hold, where a request has no answer, or where a link carried 5 % more than it might; with
0 also where choices are left to be played; 77: network namespaces, veth or tc are not to be had here.
"""

import argparse
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from link_test import check, inside, wait  # noqa: E402
from site_fleet import BURST_S, Pair, Site, SiteFleet  # noqa: E402

DAY_S = 86400
HOURS = 24
NIGHT = 0.15  # of noon's load
LONGEST = 900  # tokens
HEADERS = 1.05  # of Ethernet, IP and TCP, and of what is not frames
RUN = 5  # consecutive requests that a resampling keeps together
RESAMPLINGS = 1000
PLANNER = "planner"
WORD = 303  # a token of the demo's tokenizer that shows: parts of characters would wait for the rest of them
# What makes a day: what was played with others is not of it.
DAY_OPTIONS = ("model", "codec", "format", "scale", "parts", "median_tokens", "peak", "sites", "limits", "carry", "seed")


@dataclass
class Arrival:
    at: float  # seconds of the played day
    tokens: int


@dataclass
class Measured:
    """Of the machine, before the day."""
    tokens_per_second: float  # local prefill, one prompt at a time
    bytes_per_token: float


class Runs:
    """What was measured and played, in a file where one is given: a day that is cut off goes on there. All of one day, which
    `settings` make."""

    def __init__(self, path: Optional[Path], settings: Dict) -> None:
        self.path = path
        self.all: Dict = {"settings": settings, "measured": None, "played": {}}
        if path is not None and path.exists():
            self.all = json.loads(path.read_text())
            check(self.all["settings"] == settings, f"{path} has another day: found {self.all['settings']}, want {settings}")

    def save(self) -> None:
        if self.path is None:
            return
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(self.all))
        fresh.rename(self.path)

    def measured(self) -> Optional[Measured]:
        return Measured(**self.all["measured"]) if self.all["measured"] else None

    def set_measured(self, measured: Measured) -> None:
        self.all["measured"] = vars(measured)
        self.save()

    def parts(self, choice: str) -> Dict[str, Dict]:
        """By number, of the parts that were played under a choice."""
        return self.all["played"].setdefault(choice, {})

    def lacks(self, choice: str, wanted: List[int]) -> bool:
        return any(str(number) not in self.parts(choice) for number in wanted)


def make_day(seconds: float, peak: float, median: float, seed: int) -> List[Arrival]:
    """`peak`: tokens a second at noon."""
    draw, others = random.Random(seed), random.Random(seed + 1)
    mean = statistics.mean(length(others, median) for _ in range(1000))
    arrivals, now = [], 0.0
    while True:
        curve = (1 - math.cos(2 * math.pi * now / seconds)) / 2
        now += draw.expovariate(peak / mean * (NIGHT + (1 - NIGHT) * curve))
        if now >= seconds:
            return arrivals
        arrivals.append(Arrival(now, length(draw, median)))


def length(draw: random.Random, median: float) -> int:
    return int(min(max(draw.lognormvariate(math.log(median), 0.8), 16), LONGEST))


def how(choice: str, tokens: int, code: str) -> Dict:
    """What a request asks for so that it is served as a choice says."""
    if choice == PLANNER:
        return {}
    start = {"local": LONGEST + 1, "remote": 0}.get(choice)
    if start is None:
        start = int(choice.removeprefix("from-"))
    return {"format": code} if tokens >= start else {"fidelity": "exact"}


def first_token(port: int, prompt: List[int], asked: Dict) -> Tuple[float, str, str]:
    """Seconds to it at the client, the plan and its reason."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True,
            "allowed_token_ids": [WORD], "aludel": {**asked, "trace": True}}
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    check(response.status == 200, f"{response.status}: {response.read().decode() if response.status != 200 else ''}")
    first, plan, reason = 0.0, "", ""
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        check("error" not in event, str(event))
        if event.get("choices") and not first:
            first = time.monotonic() - begin
        said = event.get("aludel", {})
        plan, reason = said.get("plan", plan), said.get("trace", {}).get("reason", reason)
    connection.close()
    return first, plan, reason


class Prompts:
    """No two begin alike, whatever the choice, so that no cache has any."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.made = 0

    def make(self, tokens: int) -> List[int]:
        self.made += 1
        beginning = [10 + self.made % 2000, 10 + self.made // 2000]
        return beginning + [self.draw.randrange(10, 2000) for _ in range(tokens - len(beginning))]


class Part:
    """Plays a part of the day under one choice; what came of it, by the arrival's place in the day."""

    def __init__(self, choice: str, fleet: SiteFleet, code: str, prompts: Prompts) -> None:
        self.choice, self.fleet, self.code, self.prompts = choice, fleet, code, prompts
        self.seconds: Dict[int, float] = {}
        self.plans: Dict[str, int] = {}
        self.tries: List[int] = []  # of plans that have not been tried for long
        self.errors: List[str] = []
        self.lock = threading.Lock()

    def ask(self, place: int, arrival: Arrival, prompt: List[int]) -> None:
        try:
            taken, plan, reason = first_token(self.fleet.port, prompt, how(self.choice, arrival.tokens, self.code))
        except (RuntimeError, OSError) as error:
            with self.lock:
                self.errors.append(f"{self.choice}, request {place}: {error!r}")
            return
        with self.lock:
            self.seconds[place] = taken
            self.plans[plan] = self.plans.get(plan, 0) + 1
            if reason == "explore":
                self.tries.append(place)

    def refused(self) -> float:
        return self.fleet.metric(r'aludel_plans_total\{[^}]*reason="site_limit"[^}]*\}')

    def play(self, day: List[Arrival], begin: float, end: float) -> Dict:
        places = [place for place, arrival in enumerate(day) if begin <= arrival.at < end]
        prompts = [self.prompts.make(day[place].tokens) for place in places]
        await_rest(self.fleet)
        before, refused, started = self.fleet.received(), self.refused(), time.monotonic()
        threads = []
        for place, prompt in zip(places, prompts):
            time.sleep(max(0.0, started + day[place].at - begin - time.monotonic()))
            threads.append(threading.Thread(target=self.ask, args=(place, day[place], prompt)))
            threads[-1].start()
        time.sleep(max(0.0, started + end - begin - time.monotonic()))
        for thread in threads:
            thread.join()
        lasted = time.monotonic() - started
        return {"asked": len(places), "seconds": self.seconds, "plans": self.plans, "tries": self.tries, "errors": self.errors,
                "refused": self.refused() - refused,
                "used": {name: came - before[name] for name, came in self.fleet.received().items()},
                "allowed": {name: site.limit * (lasted + BURST_S) for name, site in self.fleet.sites.items()}}


class Player:
    """What came of the parts that were played under one choice."""

    def __init__(self, choice: str, parts: List[Dict]) -> None:
        self.choice = choice
        self.asked = sum(part["asked"] for part in parts)
        self.seconds = {int(place): taken for part in parts for place, taken in part["seconds"].items()}
        self.tries: Set[int] = {place for part in parts for place in part["tries"]}
        self.errors = [error for part in parts for error in part["errors"]]
        self.refused = sum(part["refused"] for part in parts)
        self.plans, self.used, self.allowed = (total(parts, what) for what in ("plans", "used", "allowed"))

    def faults(self) -> List[str]:
        """Requests that failed, or were not served as a fixed choice says, but for the limits."""
        found = list(self.errors)
        if self.choice == "local" and set(self.plans) != {"local"}:
            found.append(f"local: {self.plans}")
        if self.choice not in ("local", PLANNER) and ("fallback" in self.plans or self.plans.get("remote", 0) == 0):
            found.append(f"{self.choice}: {self.plans}")
        if self.choice == "remote" and self.plans.get("local", 0) > self.refused:
            found.append(f"remote: {self.plans}, and {self.refused:.0f} were refused for the limits")
        if len(self.seconds) != self.asked:
            found.append(f"{self.choice}: {len(self.seconds)} of {self.asked} requests have an answer")
        return found


def total(parts: List[Dict], what: str) -> Dict:
    sums: Dict = {}
    for part in parts:
        for name, value in part[what].items():
            sums[name] = sums.get(name, 0) + value
    return sums


def await_rest(fleet: SiteFleet) -> None:
    """Until nothing runs, and the limits' buckets are full."""
    wait(lambda: not fleet.decode.leftovers() and fleet.metric(r"aludel_site_link_used_ratio\{[^}]*\}") < 0.01, 120,
         lambda: f"rest: {fleet.decode.leftovers()}")


def measure(binaries: Path, folder: Path, pair: Pair, code: str, prompts: Prompts) -> Measured:
    """On links without bounds."""
    fleet = SiteFleet(binaries, folder, {"east": Site(None, None)}, pair)
    try:
        fleet.start()
        tokens = LONGEST // 2
        first_token(fleet.port, prompts.make(tokens), {"format": code})
        rate = tokens / statistics.median(first_token(fleet.port, prompts.make(tokens), {"fidelity": "exact"})[0] for _ in range(5))
        got = r'aludel_handoff_bytes_total\{direction="received"[^}]*\}'
        before = fleet.metric(got)
        for _ in range(4):
            plan = first_token(fleet.port, prompts.make(tokens), {"format": code})[1]
            check(plan == "remote", f"a handoff in {code} came as {plan}\n{fleet.tails()}")
        return Measured(rate, (fleet.metric(got) - before) / (4 * tokens))
    finally:
        fleet.stop()


def resampled(rows: List[Dict[str, float]], fixed: List[str], seed: int) -> Tuple[float, float, float]:
    """The planner's mean over the best fixed choice's: as it was, and its interval of 95 %."""
    def ratio(some: List[Dict[str, float]]) -> float:
        best = min(sum(row[choice] for row in some) for choice in fixed)
        return sum(row[PLANNER] for row in some) / best
    draw = random.Random(seed)
    runs = [rows[i:i + RUN] for i in range(0, len(rows), RUN)]
    ratios = sorted(ratio([row for run in draw.choices(runs, k=len(runs)) for row in run]) for _ in range(RESAMPLINGS))
    return ratio(rows), ratios[RESAMPLINGS // 40], ratios[-RESAMPLINGS // 40]


def mean(rows: List[Dict[str, float]], choice: str) -> float:
    return statistics.mean(row[choice] for row in rows)


def quantile(rows: List[Dict[str, float]], choice: str, share: float) -> float:
    values = sorted(row[choice] for row in rows)
    return values[min(len(values) - 1, int(share * len(values)))]


def report(day: List[Arrival], seconds: float, players: List[Player], options: argparse.Namespace) -> Tuple[List[Dict], bool]:
    """Rows by hour and one of the day; whether the planner was as soon as it should be."""
    choices = [player.choice for player in players]
    fixed = [choice for choice in choices if choice != PLANNER]
    rows = {place: {player.choice: player.seconds[place] for player in players} for place in range(len(day))
            if all(place in player.seconds for player in players)}
    if not rows:
        return [], False
    groups = [("day", list(rows.values()))]
    tries = set().union(*(player.tries for player in players))
    if untried := [row for place, row in rows.items() if place not in tries]:
        value, low, high = resampled(untried, fixed, options.seed)
        print(f"without the {len(tries)} requests that the planner tried ways with: {value:.3f} ({low:.3f} to {high:.3f})")
    for hour in range(HOURS):
        some = [row for place, row in rows.items() if hour <= day[place].at / seconds * HOURS < hour + 1]
        if some:
            groups.append((f"{hour:02}", some))
    found, good = [], True
    print("hour | requests | mean, p50, p90 of the time to the first token, ms: " + " | ".join(choices) +
          " | best fixed | planner over best fixed")
    for name, some in groups:
        value, low, high = resampled(some, fixed, options.seed)
        best, worst = (pick(fixed, key=lambda choice: mean(some, choice)) for pick in (min, max))
        if options.than == "best":
            ok = value <= options.within if name == "day" else low <= options.within
        else:
            ok = name != "day" or mean(some, PLANNER) <= options.within * mean(some, worst)
        good = good and ok
        figures = {choice: [1e3 * mean(some, choice), 1e3 * quantile(some, choice, .5), 1e3 * quantile(some, choice, .9)]
                   for choice in choices}
        cells = " | ".join("{:.0f} {:.0f} {:.0f}".format(*figures[choice]) for choice in choices)
        print(f"{name:4} | {len(some):5} | {cells} | {best} | {value:.3f} ({low:.3f} to {high:.3f}){'' if ok else ' over'}",
              flush=True)
        found.append({"hour": name, "requests": len(some), "ms": figures, "best_fixed": best, "ratio": value,
                      "interval": [low, high]})
    return found, good


def check_links(players: List[Player]) -> Tuple[Dict[str, Dict[str, float]], bool]:
    """By choice and site, what the link has carried, of what it might."""
    shares = {player.choice: {name: player.used[name] / player.allowed[name] for name in player.used} for player in players}
    for player in players:
        print(f"{player.choice}: plans {player.plans}; links, of what they might carry: " +
              ", ".join(f"{name} {share:.3f}" for name, share in shares[player.choice].items()))
    return shares, all(share <= HEADERS for by_site in shares.values() for share in by_site.values())


def play_day(options: argparse.Namespace, folder: Path, runs: Runs, pair: Pair, choices: List[str]) -> None:
    """What `runs` lacks of these choices."""
    prompts = Prompts(options.seed)
    day, seconds, sites = make_world(options, runs.measured())
    draw = random.Random(options.seed)
    part = seconds / options.parts
    for number in wanted_parts(options):
        lacking = [choice for choice in draw.sample(choices, len(choices)) if str(number) not in runs.parts(choice)]
        if not lacking:
            continue
        fleets: Dict[bool, SiteFleet] = {}  # of the planner, and of what is forced
        try:
            for planned in sorted({choice == PLANNER for choice in lacking}, reverse=number % 2 == 0):
                more = "planner { by_prediction: true min_remote_tokens: 16 }" if planned else ""
                fleets[planned] = SiteFleet(options.bin, folder / f"fleet-{number}-{int(planned)}", sites, pair,
                                            f"handoff_timeout_ms: 60000 {more}", number=1 + int(planned))
                fleets[planned].start()
            for _ in range(options.teach if True in fleets else 0):
                first_token(fleets[True].port, prompts.make(length(draw, options.median_tokens)), {})
            for choice in lacking:
                player = Part(choice, fleets[choice == PLANNER], options.format, prompts)
                runs.parts(choice)[str(number)] = player.play(day, number * part, (number + 1) * part)
                runs.save()
        except RuntimeError as error:
            tails = "\n".join(fleet.tails() for fleet in fleets.values())
            raise RuntimeError(f"{error}\n{tails}") from error
        finally:
            for fleet in fleets.values():
                fleet.stop()
        print(f"part {number + 1} of {options.parts} played", file=sys.stderr, flush=True)


def numbers(text: str) -> List[float]:
    return [float(number) for number in text.split(",")]


def wanted_parts(options: argparse.Namespace) -> List[int]:
    first, behind = options.hours or (0, HOURS)
    return [number for number in range(options.parts)
            if (number + 1) * HOURS / options.parts > first and number * HOURS / options.parts < behind]


def hours(text: str) -> Tuple[float, float]:
    first, behind = map(float, text.split("-"))
    if not 0 <= first < behind <= HOURS:
        raise ValueError
    return first, behind


def make_world(options: argparse.Namespace, measured: Measured) -> Tuple[List[Arrival], float, Dict[str, Site]]:
    """The day, how long it is played, and links with their limits."""
    seconds = DAY_S * options.scale
    peak = options.peak * measured.tokens_per_second
    names = options.sites.split(",")
    limits = {name: int(share * peak * measured.bytes_per_token) for name, share in zip(names, numbers(options.limits))}
    carries = {name: int(share * measured.tokens_per_second * measured.bytes_per_token)
               for name, share in zip(names, numbers(options.carry))}
    day = make_day(seconds, peak, options.median_tokens, options.seed)
    check(len(day) > 0, "no request in that time: want a larger --scale or --peak")
    print(f"{measured.tokens_per_second:.0f} tokens/s prefilled here, {measured.bytes_per_token:.0f} bytes/token; links of "
          f"{carries} and limits of {limits} bytes/s; {len(day)} requests in {seconds:.0f} s", flush=True)
    return day, seconds, {name: Site(carries[name], limits[name]) for name in limits}


def run(options: argparse.Namespace, folder: Path) -> int:
    codec = (f'artifact: "{options.codec}" ' if options.codec else "") + f'formats: "{options.format}"'
    pair = Pair(options.model, options.model, codec, f"max_context: {LONGEST + 100} kv_blocks: 768")
    runs = Runs(options.resume, {name: getattr(options, name) for name in DAY_OPTIONS})
    if runs.measured() is None:
        runs.set_measured(measure(options.bin, folder / "first", pair, options.format, Prompts(options.seed)))
    choices = [PLANNER, *options.fixed.split(",")]
    wanted = options.only.split(",") if options.only else choices
    check(set(wanted) <= set(choices), f"--only: found {options.only}, want some of {','.join(choices)}")
    if any(runs.lacks(choice, wanted_parts(options)) for choice in wanted):
        play_day(options, folder, runs, pair, wanted)
    if missing := [choice for choice in choices if runs.lacks(choice, wanted_parts(options))]:
        print(f"still to be played: {', '.join(missing)}")
        return 0
    return judge(options, runs, choices)


def judge(options: argparse.Namespace, runs: Runs, choices: List[str]) -> int:
    players = [Player(choice, list(runs.parts(choice).values())) for choice in choices]
    day, seconds, _ = make_world(options, runs.measured())
    rows, soon = report(day, seconds, players, options)
    shares, held = check_links(players)
    if options.json:
        plans = {player.choice: player.plans for player in players}
        options.json.write_text(json.dumps({"hours": rows, "links": shares, "plans": plans}, indent=1))
    faults = [fault for player in players for fault in player.faults()]
    if not soon:
        faults.append(f"the planner is later than {options.within} times the {options.than} fixed choice")
    if not held:
        faults.append(f"a link has carried more than {HEADERS} times what it might")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def in_pieces(options: argparse.Namespace, folder: Path) -> int:
    """Each choice in a process of its own, which has the file of those before it. The last one judges."""
    words = [sys.executable, *sys.argv]
    words.remove("--pieces")
    words += ["--resume", str(folder / "runs.json")]
    for choice in [PLANNER, *options.fixed.split(",")]:
        if (status := subprocess.run([*words, "--only", choice], check=False, env=os.environ).returncode) != 0:
            return status
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bin", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--model", default="deploy/demo/base", help="of all servers")
    parser.add_argument("--codec", default="", help="an artifact, for other formats than raw")
    parser.add_argument("--format", default="raw")
    parser.add_argument("--scale", type=float, default=0.01, help="of a day's time")
    parser.add_argument("--parts", type=int, default=6, help="of the day, each played under every choice in turn")
    parser.add_argument("--hours", type=hours, help="the parts that lie in these alone, as 18-24")
    parser.add_argument("--fixed", default="local,remote,from-150,from-400")
    parser.add_argument("--median-tokens", type=float, default=200)
    parser.add_argument("--peak", type=float, default=0.7, help="tokens asked for at noon, of those that local prefill computes")
    parser.add_argument("--teach", type=int, default=20, help="requests to the planner before each part")
    parser.add_argument("--sites", default="east,west", help="beside this one; with fewer cores than sites they share what they compute on")
    parser.add_argument("--limits", default=".3,.15", help="of the links, shares of the bytes that all prompts would take at noon")
    parser.add_argument("--carry", default="2,1",
                        help="of the links, times what local prefill computes: with 2,1 frames take half as long, and as long")
    parser.add_argument("--within", type=float, default=1.05)
    parser.add_argument("--than", choices=("best", "worst"), default="best", help="fixed choice that the planner is held to")
    parser.add_argument("--only", default="", help="choices to play now, of the planner and the --fixed ones (default: all)")
    parser.add_argument("--resume", type=lambda path: Path(path).resolve(), help="file of what was played, which goes on there")
    parser.add_argument("--pieces", action="store_true", help="play each choice in a process of its own, which resumes the day")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if (status := inside("site_day")) is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="aludel-day-") as folder:
        try:
            return in_pieces(options, Path(folder)) if options.pieces else run(options, Path(folder))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
