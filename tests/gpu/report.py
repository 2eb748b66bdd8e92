"""The results of a run: rows that are kept as they come, a file, and a table."""

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Union

Value = Union[int, float, None]


class Report:
    """`{device, driver, commit, date, benchmarks: [{name, value, unit, bound, command, part, ...}]}`. A value that could not
    be had is null, with a `reason`. What the file holds of the same device and commit stays until it is measured again, its
    rows with their own `driver` where that was another; the rest is overwritten. `copy` gets the same bytes."""

    def __init__(self, path: Path, head: Dict[str, Any], copy: Optional[Path] = None) -> None:
        self.path = path
        self.copy = copy
        self.head = head
        self.part = ""  # that is measured now
        self.rows: Dict[str, Dict[str, Any]] = {}
        self.now: Set[str] = set()  # rows of this run
        try:
            earlier = json.loads(path.read_text())
        except (OSError, ValueError):
            return
        if all(earlier.get(key) == head.get(key) for key in ("device", "commit")):
            self.rows = {row["name"]: row for row in earlier["benchmarks"]}
            if earlier["driver"] != head["driver"]:
                for row in self.rows.values():
                    row.setdefault("driver", earlier["driver"])

    def add(self, name: str, value: Value, unit: str, bound: Optional[str], command: str, **more: Any) -> None:
        """One row; the last of a name stays."""
        if isinstance(value, float):
            value = float(f"{value:.5g}")
        self.now.add(name)
        self.rows[name] = {"name": name, "value": value, "unit": unit, "bound": bound, "command": command, "part": self.part,
                           **more}

    def missing(self, name: str, unit: str, bound: Optional[str], command: str, reason: str) -> None:
        """A row without a value, unless it has one already or this run has said why not."""
        if self.value(name) is None and name not in self.now:
            self.add(name, None, unit, bound, command, reason=" ".join(reason.split())[:400])

    def value(self, name: str) -> Value:
        return self.rows[name]["value"] if name in self.rows else None

    def forget(self, part: str) -> None:
        self.rows = {name: row for name, row in self.rows.items() if row.get("part") != part}

    def complete(self, part: str, wanted: List[str]) -> bool:
        """Whether all that is wanted of a part is there, and nothing else of it is missing."""
        found = [row["value"] for row in self.rows.values() if row.get("part") == part]
        values = [*found, *map(self.value, wanted)]
        return bool(values) and None not in values

    def write(self) -> None:
        """In one step: a run that is cut short leaves the file of the part before."""
        text = json.dumps({**self.head, "benchmarks": list(self.rows.values())}, indent=1) + "\n"
        for path in filter(None, (self.path, self.copy)):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(text)
            partial.replace(path)

    def table(self) -> str:
        lines = [f"{self.head['device']}, driver {self.head['driver']}, commit {self.head['commit'][:12]}", ""]
        for row in self.rows.values():
            value = "-" if row["value"] is None else f"{row['value']:.4g}"
            note = row.get("reason", "")
            if "spread" in row:
                note = f"+-{100 * row['spread']:.1f} % {note}"
            if row.get("clocks", {}).get("held_back"):
                note = f"held back by {', '.join(row['clocks']['held_back'])} {note}"
            lines.append(f"{row['name']:<44} {value:>10} {row['unit']:<12} {row['bound'] or '':<8} {note[:90]}".rstrip())
        return "\n".join(lines)
