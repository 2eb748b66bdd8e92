"""aludel-eval's report, made of a few of the demo's questions and opened from the disk in headless Chromium.
REPORT_SCREENSHOTS=FOLDER keeps pictures.

Exit code 77: Chromium is not installed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

from browser import Browser, find_chromium
from page_test import CONTRAST
from stack import ROOT

QUESTIONS = 12
NARROW, WIDE = (320, 700), (1240, 1000)


def make_report(binary: Path, folder: Path) -> None:
    subprocess.run([str(binary), "--producer", "deploy/demo/base", "--consumer", "deploy/demo/chat", "--codec", "deploy/demo/codec",
                    "--qa", "deploy/demo/questions.jsonl", "--questions", str(QUESTIONS), "--out", str(folder)],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200)


def column(browser: Browser, number: int) -> List[str]:
    return browser.run(f"[...document.querySelector('table.sortable').tBodies[0].rows].map((row) => row.cells[{number}].textContent)")


def sorts(browser: Browser) -> None:
    head = "document.querySelector('table.sortable th:nth-child(2)')"
    for wanted in ("descending", "ascending"):
        browser.click(f"{head}.firstChild")
        assert browser.run(f"{head}.ariaSort") == wanted
        found = [float(one) for one in column(browser, 1)]
        assert found == sorted(found, reverse=wanted == "descending"), found
    browser.click("document.querySelector('table.sortable th').firstChild")
    assert column(browser, 0) == sorted(column(browser, 0)), column(browser, 0)


def compares_links(browser: Browser) -> None:
    def rows() -> dict:
        names = browser.run("[...document.querySelectorAll('.links span')].map((one) => one.textContent)")
        times = browser.run("[...document.querySelectorAll('.links b')].map((one) => one.textContent)")
        units = {"ms": 1e-3, "s": 1.0}
        seconds = [float(one.split()[0]) * units[one.split()[1]] for one in times]
        assert seconds == sorted(seconds), seconds
        return dict(zip(names, seconds))

    browser.run("document.querySelector('#links input[type=range]').focus()")
    browser.press("Home")
    slow = rows()
    browser.press("End")
    fast = rows()
    assert slow["raw"] > fast["raw"] and slow["local prefill"] == fast["local prefill"], (slow, fast)
    assert slow["aludel-p2"] < slow["raw"], slow
    browser.run("document.querySelector('#links input[type=checkbox]').click()")
    assert rows()["raw"] < fast["raw"]


def shows_examples(browser: Browser, report: dict) -> None:
    for index in (0, len(report["formats"]) - 1):
        browser.run(f"(() => {{ const choice = document.querySelector('#examples select'); choice.value = {index};"
                    "choice.dispatchEvent(new Event('change')); return 1; })()")
        shown = browser.run("[...document.querySelectorAll('#examples tbody tr')].map((row) => row.cells[1].textContent)")
        wanted = sorted((one["formats"][index]["kl"] for one in report["examples"]), reverse=True)
        assert shown == [f"{kl:.3f}" for kl in wanted], (shown, wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of aludel-eval")
    options = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("skipped: report_e2e: chromium is not installed")
        return 77
    with tempfile.TemporaryDirectory(prefix="aludel-report-") as folder, Browser(program) as browser:
        make_report(options.bin.resolve() / "aludel-eval", Path(folder))
        report = json.loads((Path(folder) / "report.json").read_text())
        browser.resize(*WIDE)
        browser.prefer("light")
        browser.open(f"file://{folder}/report.html", "document.querySelector('#examples tbody tr')")
        words = browser.run("document.body.innerText")
        assert words.index(report["verdict"][0]) < words.index("questions, "), "the verdict is first"
        assert f"Only {QUESTIONS} questions" in words and "--consumer deploy/demo/chat" in words and report["date"] in words
        sorts(browser)
        compares_links(browser)
        shows_examples(browser, report)
        browser.run("document.querySelector('tr[data-of=raw]').dispatchEvent(new Event('pointerenter'))")
        assert browser.run("[...document.querySelectorAll('.dim')].length > 5 && !document.querySelector('.dim[data-of=raw]')")
        browser.run("document.querySelector('tr[data-of=raw]').dispatchEvent(new Event('pointerleave'))")
        assert browser.run("document.querySelectorAll('.dim').length") == 0
        assert browser.problems == [], browser.problems
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            for name, size in (("wide", WIDE), ("narrow", NARROW)):
                browser.resize(*size)
                assert browser.run("document.documentElement.scrollWidth") <= size[0], (scheme, name)
                found = browser.run(CONTRAST)
                assert found == [], (scheme, name, found)
                if os.environ.get("REPORT_SCREENSHOTS"):
                    browser.screenshot(Path(os.environ["REPORT_SCREENSHOTS"]) / f"report-{name}-{scheme}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
