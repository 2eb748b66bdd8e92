"""Would it pay to send the first planes of embedded codes first, and the others after the first token, as servers do where they
are asked for NAME@N+? This takes what aludel-eval measured to links and answers:

    build/release/bin/aludel-eval --codec CODEC --formats p0,p0@1 --text FILE --upgrade-after 1,4,16,64 --out report ...
    progressive.py report/report.json [--tokens 1000] [--links 1,10,100] [--itl-ms 20]

Times are those of the bytes on the link (Mb/s) and nothing else; computing and round trips come on top of both ways. The answer goes
on at a token every --itl-ms while the other planes come. They upgrade all of the cache at once, when the last has come, and
their loss is that of the measured upgrade that is no sooner.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Dict

TOKENS = (16, 64)  # of the answer, that the loss is a mean of

Curve = Dict[str, Any]
Upgrade = Dict[str, Any]


def mean_kl(upgrade: Upgrade, curve: Curve, tokens: int) -> float:
    """Over the first so many tokens."""
    total, begin = 0.0, 0
    for end, kl in zip(upgrade["spans"], curve["kl"]):
        total += kl * max(0, min(end, tokens) - begin)
        begin = end
    return total / min(tokens, begin)


def curve_of(upgrade: Upgrade, after: float) -> Curve:
    """The measured one that comes no sooner; what was read before stays as it is."""
    curves = [curve for curve in upgrade["curves"] if not curve["again"]]
    never = next(curve for curve in curves if curve["after"] is None)
    later = [curve for curve in curves if curve["after"] is not None and curve["after"] >= after]
    return min(later, key=lambda curve: int(curve["after"]), default=never)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--tokens", type=int, default=1000, help="of the prompt")
    parser.add_argument("--links", default="1,10,100", help="Mb/s")
    parser.add_argument("--itl-ms", type=float, default=20)
    options = parser.parse_args()
    losses = [f"KL of {tokens} tokens: whole, upgraded, first planes" for tokens in TOKENS]
    print(f"| format | link, Mb/s | ms on it: whole, first planes | other planes come after tokens | {' | '.join(losses)} |")
    print("|---" * (4 + len(losses)) + "|")
    for upgrade in json.loads(options.report.read_text())["upgrades"]:
        for link in map(float, options.links.split(",")):
            whole, base, rest = (8e-3 * options.tokens * upgrade[f"{part}_bytes_per_token"] / link
                                 for part in ("whole", "base", "upgrade"))
            after = rest / options.itl_ms
            curves = [curve_of(upgrade, after) for after in (0, after, float("inf"))]
            kl = [", ".join(f"{mean_kl(upgrade, curve, tokens):.4f}" for curve in curves) for tokens in TOKENS]
            print(f"| `{upgrade['format']}` | {link:g} | {whole:.0f}, {base:.1f} | {after:.1f} | {' | '.join(kl)} |")


if __name__ == "__main__":
    main()
