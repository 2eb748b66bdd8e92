"""The results of a run: rows that are kept as they come, a file, and a table."""

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

Value = Union[int, float, None]


class Report:
    """`{device, driver, commit, date, benchmarks: [{name, value, unit, bound, command, ...}]}`. A value that could not
    be had is null, with a `reason`."""

    def __init__(self, path: Path, head: Dict[str, Any]) -> None:
        self.path = path
        self.head = head
        self.rows: List[Dict[str, Any]] = []

    def add(self, name: str, value: Value, unit: str, bound: Optional[str], command: str, **more: Any) -> None:
        """One row; the last of a name stays."""
        if isinstance(value, float):
            value = float(f"{value:.5g}")
        self.rows = [row for row in self.rows if row["name"] != name]
        self.rows.append({"name": name, "value": value, "unit": unit, "bound": bound, "command": command, **more})

    def missing(self, name: str, unit: str, bound: Optional[str], command: str, reason: str) -> None:
        """A row without a value; one that is there already stays."""
        if all(row["name"] != name for row in self.rows):
            self.add(name, None, unit, bound, command, reason=" ".join(reason.split())[:400])

    def value(self, name: str) -> Value:
        return next((row["value"] for row in self.rows if row["name"] == name), None)

    def write(self) -> None:
        """In one step: a run that is cut short leaves the file of the part before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({**self.head, "benchmarks": self.rows}, indent=1) + "\n")
        partial.replace(self.path)

    def table(self) -> str:
        lines = [f"{self.head['device']}, driver {self.head['driver']}, commit {self.head['commit'][:12]}", ""]
        for row in self.rows:
            value = "-" if row["value"] is None else f"{row['value']:.4g}"
            note = row.get("reason", "")
            lines.append(f"{row['name']:<44} {value:>10} {row['unit']:<12} {row['bound'] or '':<8} {note[:90]}".rstrip())
        return "\n".join(lines)
