"""Would it pay to send the first planes of embedded codes first and the others after the first token? No server does so: this
puts together what two programs measured of the parts.

    build/release/bin/aludel-bench ttft --codec CODEC --formats p0,p0@1 --links 1M,10M,100M --json ttft.json ...
    build/release/bin/aludel-eval --codec CODEC --formats p0,p0@1 --text FILE --upgrade-after 1,2,4,8,16,32,64 --out report ...
    progressive.py --ttft ttft.json --report report/report.json --itl-ms 20

The first token is that of the cut format, whose frames would come first; the other planes follow at the link's rate, whole frames'
headers once more, while the answer goes on at a token every --itl-ms. Its loss is that of the measured upgrade which
is next later. For each link and length: both first tokens, when the upgrade comes, and the mean KL of the answer's first tokens, by
whole frames, upgraded, and by the first planes alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

TOKENS = (16, 64)  # of the answer, that the loss is a mean of


def mean_kl(upgrade: Dict[str, Any], curve: Dict[str, Any], tokens: int) -> float:
    """Over the first so many tokens."""
    total, begin = 0.0, 0
    for end, kl in zip(upgrade["spans"], curve["kl"]):
        total += kl * max(0, min(end, tokens) - begin)
        begin = end
    return total / min(tokens, upgrade["spans"][-1])


def curve_of(upgrade: Dict[str, Any], after: float) -> Dict[str, Any]:
    """The measured one that comes no sooner: what was read stays as it is."""
    curves: List[Dict[str, Any]] = [one for one in upgrade["curves"] if not one["again"]]
    later = [one for one in curves if one["after"] is not None and one["after"] >= after]
    return min(later, key=lambda one: one["after"]) if later else next(one for one in curves if one["after"] is None)


def first_token(rows: List[Dict[str, Any]], like: Dict[str, Any], form: str) -> Optional[float]:
    """Seconds, in a format, over the link of another row."""
    for row in rows:
        if row["format"] == form and all(row[key] == like[key] for key in ("link_bits_per_second", "tokens", "state")):
            return float(row["seconds"]["median"]) if "seconds" in row else None
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ttft", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--itl-ms", type=float, default=20)
    options = parser.parse_args()
    rows = json.loads(options.ttft.read_text())["rows"]
    print("| format | link, Mb/s | prompt tokens | first token, ms: whole; first planes | planes come after tokens | "
          + " | ".join(f"KL of {tokens} tokens: whole; upgraded; first planes" for tokens in TOKENS) + " |")
    print("|---" * (5 + len(TOKENS)) + "|")
    for upgrade in json.loads(options.report.read_text())["upgrades"]:
        cut = upgrade["format"]
        for row in rows:
            if row["format"] != cut or row["link_bits_per_second"] is None:
                continue
            base, whole = first_token(rows, row, cut), first_token(rows, row, cut.rsplit("@", 1)[0])
            if base is None or whole is None:
                continue
            seconds = upgrade["upgrade_bytes_per_token"] * row["tokens"] * 8 / row["link_bits_per_second"]
            after = seconds / (options.itl_ms / 1000)
            curves = [curve_of(upgrade, 0), curve_of(upgrade, after), curve_of(upgrade, float("inf"))]
            print(f"| {cut} | {row['link_bits_per_second'] / 1e6:g} | {row['tokens']} ({row['state']}) | {1e3 * whole:.0f}; "
                  f"{1e3 * base:.0f} | {after:.1f} | "
                  + " | ".join("; ".join(f"{mean_kl(upgrade, curve, tokens):.3f}" for curve in curves) for tokens in TOKENS)
                  + " |")


if __name__ == "__main__":
    main()
