"""Simulated days at a site that may use a part of a link to prefill servers elsewhere (SiteLinks): which prompts are worth the
link? Handed over is, while the limit's bucket is not empty,

  from N        what has at least N tokens: site_day.py's fixed choices
  times alone   what is predicted to be sooner so; and of that:
  length to N   what has at least N tokens times the part of the bucket that is taken (Prefill-as-a-Service, arXiv 2604.15039)
  price P       what is sooner by P times that part, times what the prompt takes to compute here alone (LinkPrice)
  crowd P       what saves that with those who come behind it, who count as much as the prompt takes here, at most (the
                planner's CrowdPrice; its P is 3)

    site_threshold.py [--days 5] [--carries .5]

Arrivals and lengths are site_day.py's. Prefill here is one queue, prefill there and what the link carries are others; a handoff
computes a little here, too. Predictions are wrong by --noise. Times are seconds of the simulation.
"""

import argparse
import math
import random
import statistics
from dataclasses import dataclass
from typing import Callable, Dict, List

from site_day import Arrival, make_day

BURST_S = 10  # SiteLinks::kBurst


@dataclass
class World:
    """Rates are tokens a second: of prefill here and there, of what the link carries, and of what handoffs may take of it."""
    here: float
    carries: float
    limit: float
    overhead: float  # seconds of a handoff beside computing and sending
    consumer: float  # seconds that a handoff computes here
    noise: float  # of predictions: the standard deviation of their logarithm


@dataclass
class Handoff:
    """What a rule decides by."""
    used: float  # of the limit's bucket
    tokens: int
    saves: float  # seconds
    alone: float  # seconds that the prompt takes to compute here, without a queue
    crowd: float  # seconds by which it makes those later who come behind it, more than its handoff does
    spares: float  # what it takes here, without what its handoff takes


Rule = Callable[[Handoff], bool]


def from_length(least: float) -> Rule:
    return lambda handoff: handoff.tokens >= least


def by_length(least: float) -> Rule:
    return lambda handoff: handoff.saves > 0 and handoff.tokens >= least * handoff.used


def by_price(price: float) -> Rule:
    return lambda handoff: handoff.saves > price * handoff.used * handoff.alone


def by_crowd(price: float) -> Rule:
    return lambda handoff: handoff.saves + min(handoff.crowd, handoff.spares) > price * handoff.used * handoff.alone


class Arrivals:
    """A second, lately: the planner's ArrivalRate."""

    def __init__(self) -> None:
        self.rate = self.at = 0.0

    def arrive(self, at: float) -> float:
        self.rate = self.rate * math.exp(-(at - self.at) / 20) + 1 / 20
        self.at = at
        return self.rate


def play(day: List[Arrival], world: World, worth: Rule) -> List[float]:
    """Seconds to each first token."""
    here_free = there_free = link_free = at = 0.0
    taken = 0.0  # tokens of the bucket
    bucket = world.limit * BURST_S
    arrivals, draw = Arrivals(), random.Random(1)
    seconds = []

    def delays(here: float, wait: float, rate: float) -> float:
        """Others, by a prompt that computes so long here."""
        return rate * here * (wait + here / 2)

    for arrival in day:
        taken = max(0.0, taken - (arrival.at - at) * world.limit)
        at = arrival.at
        rate = arrivals.arrive(at)
        alone, wait = arrival.tokens / world.here, max(here_free - at, 0.0)
        local = wait + alone
        made = max(there_free, at) + alone
        # It is sent while it is computed.
        sent = max(made, max(link_free, at) + arrival.tokens / world.carries)
        remote = sent - at + world.overhead
        used = taken / bucket
        seen_local, seen_remote = (time * math.exp(draw.gauss(0, world.noise)) for time in (local, remote))
        crowd = delays(alone, wait, rate) - delays(world.consumer, wait, rate)
        handoff = Handoff(used, arrival.tokens, seen_local - seen_remote, alone, crowd, max(0.0, alone - world.consumer))
        if used < 1 and worth(handoff):
            taken += arrival.tokens
            there_free, link_free = made, sent
            here_free = max(here_free, at) + world.consumer
            seconds.append(remote)
        else:
            here_free = max(here_free, at) + alone
            seconds.append(local)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--days", type=int, default=5, help="simulated, of seeds 1 and so on")
    parser.add_argument("--seconds", type=float, default=864, help="of each: a hundredth of a day")
    parser.add_argument("--rate", type=float, default=3000, help="tokens a second that are prefilled here")
    parser.add_argument("--peaks", default="0.5,0.7,1.0,1.3", help="asked for at noon, of that")
    parser.add_argument("--limits", default="0.15,0.3", help="of the link, of what noon asks for")
    parser.add_argument("--carries", type=float, default=2, help="of the link, of that rate")
    parser.add_argument("--overhead", type=float, default=0.02)
    parser.add_argument("--consumer", type=float, default=0.01, help="seconds that a handoff computes here")
    parser.add_argument("--noise", type=float, default=0.2, help="of predictions: the standard deviation of their logarithm")
    parser.add_argument("--median-tokens", type=float, default=200)
    parser.add_argument("--lengths", default="200,400,900")
    parser.add_argument("--prices", default="0.5,1,2")
    parser.add_argument("--crowds", default="2,3,4")
    parser.add_argument("--fixed", default="200,400,600")
    options = parser.parse_args()
    rules: Dict[str, Rule] = {f"from {least}": from_length(float(least)) for least in options.fixed.split(",")}
    rules["times alone"] = lambda handoff: handoff.saves > 0
    rules.update({f"length to {least}": by_length(float(least)) for least in options.lengths.split(",")})
    rules.update({f"price {price}": by_price(float(price)) for price in options.prices.split(",")})
    rules.update({f"crowd {price}": by_crowd(float(price)) for price in options.crowds.split(",")})
    print("asked at noon | limit | mean and p90 of the time to the first token, ms: " + " | ".join(rules))
    for peak in map(float, options.peaks.split(",")):
        for limit in map(float, options.limits.split(",")):
            world = World(options.rate, options.carries * options.rate, limit * peak * options.rate, options.overhead,
                          options.consumer, options.noise)
            cells = []
            for worth in rules.values():
                means, tails = [], []
                for seed in range(1, options.days + 1):
                    day = make_day(options.seconds, peak * options.rate, options.median_tokens, seed)
                    taken = sorted(play(day, world, worth))
                    means.append(statistics.mean(taken))
                    tails.append(taken[int(.9 * len(taken))])
                cells.append(f"{1e3 * statistics.mean(means):.0f} {1e3 * statistics.mean(tails):.0f}")
            print(f"{peak:g} | {limit:g} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
