"""Simulated days at a site that may use a part of a link to prefill servers elsewhere (SiteLinks): which prompts are worth the
link? Handed over is what is predicted to be sooner so while the limit's bucket is not empty, and of that:

  times alone   all
  length to N   what has at least N tokens times the part of the bucket that is taken (Prefill-as-a-Service, arXiv 2604.15039)
  price P       what is sooner by P times that part, times what the prompt takes to compute here alone (the planner's LinkPrice)

    site_threshold.py [--days 5] [--carries .5]

Arrivals and lengths are site_day.py's. Prefill here is one queue, what the link carries another; predictions are exact, so that
what is compared is the rule and nothing else. Times are seconds of the simulation.
"""

import argparse
import random
import statistics
from dataclasses import dataclass
from typing import Callable, Dict, List

from site_day import Arrival, make_day

BURST_S = 10  # SiteLinks::kBurst


@dataclass
class World:
    """Rates are tokens a second: of prefill here, of what the link carries, and of what handoffs may take of it."""
    here: float
    carries: float
    limit: float
    overhead: float  # seconds of a handoff beside computing and sending


@dataclass
class Handoff:
    """What a rule decides by."""
    used: float  # of the limit's bucket
    tokens: int
    saves: float  # seconds
    alone: float  # seconds that the prompt takes to compute here, without a queue


Rule = Callable[[Handoff], bool]


def by_length(least: float) -> Rule:
    return lambda handoff: handoff.tokens >= least * handoff.used


def by_price(price: float) -> Rule:
    return lambda handoff: handoff.saves > price * handoff.used * handoff.alone


def play(day: List[Arrival], world: World, worth: Rule) -> List[float]:
    """Seconds to each first token."""
    here_free = link_free = at = 0.0
    taken = 0.0  # tokens of the bucket
    bucket = world.limit * BURST_S
    seconds = []
    for arrival in day:
        taken = max(0.0, taken - (arrival.at - at) * world.limit)
        at = arrival.at
        alone = arrival.tokens / world.here
        local = max(here_free - at, 0.0) + alone
        # A prefill server that is not loaded sends while it computes.
        remote = max(link_free - at, 0.0) + arrival.tokens / min(world.carries, world.here) + world.overhead
        used = taken / bucket
        if used < 1 and remote < local and worth(Handoff(used, arrival.tokens, local - remote, alone)):
            taken += arrival.tokens
            link_free = max(link_free, at) + arrival.tokens / world.carries
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
    parser.add_argument("--peaks", default="0.7,1.0,1.3", help="asked for at noon, of that")
    parser.add_argument("--limits", default="0.15,0.3,0.6", help="of the link, of what noon asks for")
    parser.add_argument("--carries", type=float, default=2, help="of the link, of that rate")
    parser.add_argument("--overhead", type=float, default=0.02)
    parser.add_argument("--median-tokens", type=float, default=200)
    parser.add_argument("--lengths", default="200,400,900")
    parser.add_argument("--prices", default="0.5,1,2")
    options = parser.parse_args()
    rules: Dict[str, Rule] = {"times alone": lambda handoff: True}
    rules.update({f"length to {least}": by_length(float(least)) for least in options.lengths.split(",")})
    rules.update({f"price {price}": by_price(float(price)) for price in options.prices.split(",")})
    print("asked at noon | limit | mean and p90 of the time to the first token, ms: " + " | ".join(rules))
    for peak in map(float, options.peaks.split(",")):
        for limit in map(float, options.limits.split(",")):
            world = World(options.rate, options.carries * options.rate, limit * peak * options.rate, options.overhead)
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
