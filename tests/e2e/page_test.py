"""The gateway's page in headless Chromium, under stack.py: it asks over codes and beside them with the consumer's local
prefill, and shows what came of both. PAGE_SCREENSHOTS=FOLDER keeps pictures.

Exit code 77: Chromium is not installed.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import List

from browser import Browser, find_chromium

DONE = "document.body.dataset.done"
NEWEST = "document.querySelector('#rounds section')"
NARROW, WIDE = (320, 700), (1180, 1000)
TRIES = 20
AA = 4.5  # contrast of text, WCAG 2.1

# Texts with too little contrast, over the backgrounds that lie behind them.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (...colors) => {
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    const channel = (value) => (value /= 255) <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  };
  const bad = [];
  for (const one of document.querySelectorAll("body *")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) 
        || "value" in one && one.value && !["range", "checkbox"].includes(one.type);
    if (!own || !one.checkVisibility() || one.closest("script")) continue;
    const behind = [];
    for (let at = one; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const lights = [paint("#fff", ...behind), paint("#fff", ...behind, getComputedStyle(one).color)].sort((a, b) => b - a);
    const contrast = (lights[0] + .05) / (lights[1] + .05);
    if (contrast < LEAST) bad.push(`${one.tagName} ${one.className} "${one.textContent.slice(0, 30)}": ${contrast.toFixed(2)}`);
  }
  return bad;
})()""".replace("LEAST", str(AA))

# What reaches over the edge of its panel, or of the page.
OUTSIDE = """[...document.querySelectorAll("main *")].filter((one) => {
  const around = one.parentElement.closest(".panel, form, main"), padding = parseFloat(getComputedStyle(around).paddingRight);
  return one.getBoundingClientRect().right > around.getBoundingClientRect().right - padding + 1;
}).map((one) => one.outerHTML.slice(0, 80))"""


class Page:
    """The chat page as a person has it."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.folder = os.environ.get("PAGE_SCREENSHOTS")

    def picture(self, name: str) -> None:
        if self.folder:
            self.browser.screenshot(Path(self.folder) / f"{name}.png")

    def click(self, label: str, within: str = "document") -> None:
        self.browser.click(f"[...{within}.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(label)})")

    def choose(self, field: str, value: str) -> None:
        self.browser.run(f"(() => {{ const field = document.getElementById({json.dumps(field)}); field.value = "
                         f"{json.dumps(value)}; field.dispatchEvent(new Event('change')); return field.value; }})()")

    def ask(self) -> str:
        """What the newest round says in the end."""
        self.browser.run(f"delete {DONE}")
        self.click("Ask")
        self.browser.wait(DONE)
        return self.text()

    def ask_until(self, wanted: str) -> None:
        """What caches and timings say of one answer depends on the moment, so another try is fair."""
        for _ in range(TRIES):
            if wanted in self.ask():
                return
        raise AssertionError(f"{wanted!r} is not in {self.text()!r}")

    def text(self, within: str = NEWEST) -> str:
        return self.browser.run(f"{within}.innerText")

    def texts(self, selector: str) -> List[str]:
        return self.browser.run(f"[...{NEWEST}.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText.trim())")

    def seconds(self) -> List[float]:
        """The times of the link estimate: codes, raw, local prefill."""
        units = {"ms": 1e-3, "s": 1.0}
        found = [re.fullmatch(r"([\d.]+) (ms|s)", one) for one in self.texts(".links b")]
        return [float(one[1]) * units[one[2]] for one in found]


def answers_both_ways(page: Page) -> None:
    assert page.texts("article .text") == ["ferry", "ferry"], page.text()
    assert page.browser.run(f"[...{NEWEST}.querySelectorAll('article')].map((one) => one.dataset.done)") == ["ok", "ok"]
    verdict = page.texts(".verdict")[0]
    assert re.fullmatch(r"Same words, first token ([\d.]+× (sooner|later) over (warm |cold )?codes than|over (warm |cold )?codes as soon as) "
                        r"by cold local prefill, 1/\d{3} of the raw cache's bytes\.", verdict), verdict
    for bar in range(2):
        shares = page.browser.run(f"[...{NEWEST}.querySelectorAll('.ttft .track')[{bar}].querySelectorAll('i')]"
                                  ".map((one) => parseFloat(one.style.width))")
        assert len(shares) >= 2 and 90 < sum(shares) < 101, shares
    widths = page.browser.run(f"[...{NEWEST}.querySelectorAll('.ttft .track > div')].map((one) => parseFloat(one.style.width))")
    assert max(widths) == 100 and min(widths) > 0, widths
    sent, raw = page.texts(".bytes b")
    formats = page.browser.run("[...document.getElementById('format').options].map((one) => one.text)")
    assert any(re.fullmatch(r"raw · [\d,]+ B/token", one) for one in formats), formats
    assert any(re.fullmatch(r"aludel-p2 · [\d.]+ B/token", one) for one in formats), formats
    assert sent.endswith(" KiB") and re.fullmatch(r"480\.0 KiB", raw), (sent, raw)
    assert "instead of 480.0 KiB" in page.text("document.querySelector('.story')")


def shows_the_trace(page: Page) -> None:
    """The waterfall's bars are in order and within the chart, and the planner's table has what ran."""
    labels = page.texts(".waterfall > span")
    assert labels[-1] == "first token" and len(labels) > 1 and all(one.startswith("layer") for one in labels[:-1]), labels
    marks = page.browser.run(f"""[...{NEWEST}.querySelectorAll('.lane')].map((lane) => [...lane.querySelectorAll('i')].map((one) =>
        [one.className, parseFloat(one.style.left), parseFloat(one.style.width)]))""")
    for lane in marks:
        for name, left, width in lane:
            assert left >= 0 and width >= 0 and left + width < 100.01, (name, left, width)
    names = {name for lane in marks for name, _, _ in lane}
    assert {"transfer", "reconstruct", "first_decode"} <= names, names
    rows = page.browser.run(f"[...{NEWEST}.querySelectorAll('table')].at(-1).innerText").split("\n")
    plans = {row.split("\t")[0]: row.split("\t")[1:] for row in rows[1:]}
    assert set(plans) >= {"local prefill", "aludel-p2 ✓"}, plans
    took = re.fullmatch(r"([\d.]+) (ms|s)", plans["aludel-p2 ✓"][1])
    assert took and re.fullmatch(r"[\d.]+ m?s", plans["local prefill"][1]), plans
    assert re.fullmatch(r"[\d.]+", plans["aludel-p2 ✓"][2]), plans
    assert "This page asked for the format." in page.text(), page.text()


HOSTILE = """# A *title*
<img src=x onerror=alert(1)> and [a](javascript:alert(1)) **bold _nested_** `<b>`

1. one
2. two

- snake_case_name

> said

```html
<script>alert(1)</script>
**not bold**
"""


def draws_markdown_safely(page: Page) -> None:
    made = page.browser.run(f"(() => {{ const box = document.createElement('div'); box.append(...markdown({json.dumps(HOSTILE)}));"
                            "return [box.innerHTML, [...box.querySelectorAll('*')].map((one) => one.tagName + one.attributes.length)]; })()")
    html, names = made
    assert names == ["H30", "EM0", "P0", "STRONG0", "EM0", "CODE0", "OL1", "LI0", "LI0", "UL0", "LI0", "BLOCKQUOTE0", "PRE0",
                     "CODE0"], names
    assert html.startswith("<h3>A <em>title</em></h3><p>&lt;img src=x onerror=alert(1)&gt; and [a](javascript:alert(1)) "
                           "<strong>bold <em>nested</em></strong> <code>&lt;b&gt;</code></p>"), html
    assert "<li>snake_case_name</li>" in html and "&lt;script&gt;alert(1)&lt;/script&gt;\n**not bold**\n" in html, html
    assert page.browser.run("markdown('*'.repeat(3000) + 'a_'.repeat(2000)).length") == 1
    # No way around it either: the browser refuses markup made of text.
    assert page.browser.run("(() => { try { document.body.insertAdjacentHTML('beforeend', '<p>'); return 'made'; } "
                            "catch (error) { return error.name; } })()") == "TypeError"
    page.browser.problems.clear()


def link_estimate_follows_its_slider(page: Page) -> None:
    slider = f"{NEWEST}.querySelector('input[type=range]')"
    page.browser.run(f"{slider}.focus()")
    page.browser.press("Home")
    assert "On a link of 10 Mb/s" in page.text()
    slow = page.seconds()
    page.browser.press("End")
    assert "On a link of 100 Gb/s" in page.text()
    fast = page.seconds()
    # 480 KiB take .39 s on the slow link, 1.2 KiB a millisecond; nothing is sent for local prefill.
    assert .37 < slow[1] - fast[1] < .42 and 0 <= slow[0] - fast[0] < .02 and slow[2] == fast[2], (slow, fast)


def says_what_was_cached(page: Page) -> None:
    page.ask_until("Warm: the prefill server had them in its cache.")
    for stages, warmth in (({"prefill": 0, "encode": 1e-5, "transfer": 1e-5}, "warm"), ({"prefill": .02, "encode": 0, "transfer": 0}, "cold"),
                           ({"prefill": 0, "encode": 0, "transfer": .05}, "")):
        report = json.dumps({"report": {"plan": "remote", "stages": stages}})
        assert page.browser.run(f"Answer.prototype.warmth.call({report})") == warmth, report
    page.choose("caches", "cold")
    for _ in range(2):
        assert "Cold: the prefill server computed them for this answer." in page.ask(), page.text()
        assert "none of them cached: cold." in page.text()
        # The prefill server's account has come, although the answer is short.
        lanes = page.browser.run(f"[...{NEWEST}.querySelectorAll('.lane i')].map((one) => one.className)")
        assert {"prefill", "encode"} <= set(lanes), lanes
    page.choose("caches", "all")
    page.ask_until("found in its prefix cache: warm.")
    assert "from an earlier handoff (aludel-p2): nothing was sent." in page.text(), page.text()
    assert "nothing sent." in page.texts(".verdict")[0] and "by warm local prefill" in page.texts(".verdict")[0], page.text()
    page.choose("caches", "warm")


def compares_honestly(page: Page) -> None:
    page.choose("format", "raw")
    page.ask()
    assert page.texts(".verdict")[0].endswith(", as many bytes as the raw cache."), page.text()
    assert "beats raw" not in page.text() and len(page.texts(".links b")) == 2, page.text()
    page.choose("model", "json")  # the base's cache as it is: another model's words
    page.ask()
    codes, own = page.texts("article .text")
    assert codes != own and own == '{"answer": "ferry"}', page.text()
    assert page.texts(".verdict")[0].startswith("Different words ("), page.text()
    assert page.texts("mark"), page.text()
    assert page.browser.run("differences(['a', 'b', 'c'], ['a', 'c', 'd'])") == [[False, True, False], [False, False, True]]
    page.choose("model", "chat")
    page.choose("format", "aludel-p2")
    page.browser.run("document.getElementById('compare').checked = false")
    page.ask()
    assert re.fullmatch(r"First token after [\d.]+ m?s, 1/\d{3} of the raw cache's bytes\.", page.texts(".verdict")[0]), page.text()
    page.browser.run("document.getElementById('compare').checked = true")
    page.choose("format", "")
    page.choose("prompt", "who is there")  # too short to be worth the trip
    page.ask()
    assert page.texts(".verdict") == ["No codes here: the decode server prefilled the prompt itself."], page.text()
    page.click("A journey")
    page.choose("format", "aludel-p2")


def follows_up(page: Page, url: str) -> None:
    page.browser.run("document.querySelector('details').open = true")
    page.choose("system", "It's short.")
    page.ask()
    page.click("Follow up", NEWEST)
    assert "assistant: ferry" in page.text("document.getElementById('turns')")
    page.choose("prompt", "who is the mayor of Porthaven")
    page.ask()
    page.click("Copy as curl", NEWEST)
    command = page.texts("pre")[0]
    body = json.loads(re.search(r" -d '(.*)'$", command, re.DOTALL)[1].replace("'\\''", "'"))
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "user"], command
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert url in command and done.stdout.rstrip().endswith("data: [DONE]"), done.stdout
    page.click("Start over")
    assert page.browser.run("document.getElementById('turns').hidden")
    page.choose("system", "")


def stops(page: Page) -> None:
    # A server that never answers, so that nothing depends on who is faster.
    page.browser.run("""window.served = window.fetch, window.fetch = (_, {signal}) => new Promise((_, reject) =>
        signal.addEventListener("abort", () => reject(signal.reason))), 0""")
    page.browser.run(f"delete {DONE}")
    page.browser.press("Enter", control=True)
    page.browser.wait(f"/\\d m?s$/.test({NEWEST}.querySelector('.ttft b').innerText)")  # counts while it waits
    page.browser.press("Escape")
    page.browser.wait(DONE)
    assert page.texts(".verdict") == ["Stopped."] and page.texts("article h2 span") == ["stopped", "stopped"], page.text()
    page.browser.run("window.fetch = window.served, 0")


def shows_errors(page: Page) -> None:
    page.choose("tokens", "100000")
    page.ask()
    assert "max_tokens" in page.texts(".text.error")[0] or "context" in page.texts(".text.error")[0], page.text()
    page.choose("tokens", "48")


def fits_every_screen(page: Page) -> None:
    page.browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for scheme in ("light", "dark"):
        page.browser.prefer(scheme)
        for name, size in (("wide", WIDE), ("narrow", NARROW)):
            page.browser.resize(*size)
            assert page.browser.run("document.documentElement.scrollWidth") <= size[0], page.browser.run(OUTSIDE)
            for fault in (OUTSIDE, CONTRAST):
                found = page.browser.run(fault)
                assert found == [], (scheme, name, found)
            page.picture(f"{name}-{scheme}")
    page.browser.resize(*WIDE)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.browser.run(ground)
    page.browser.prefer("light")
    assert page.browser.run(ground) != dark
    page.click("Theme: auto")
    assert page.browser.run(ground) == dark
    page.click("Theme: dark")
    page.click("Theme: light")


def says_what_it_may_run(url: str) -> None:
    """The policy names the script and the style of this very page, and nothing else that runs."""
    with urllib.request.urlopen(url + "/", timeout=10) as reply:
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
        html = reply.read().decode()
    assert policy["default-src"] == "'none'", policy
    for tag in ("script", "style"):
        texts = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", html, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert policy[f"{tag}-src"] == " ".join(f"'sha256-{digest}'" for digest in digests), policy
        assert len(texts) == 1, tag
    markup = re.sub(r"<(script|style)>.*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)\s*=", markup), "no style or handler in an attribute"


def main() -> int:
    url = os.environ["GATEWAY_URL"]
    says_what_it_may_run(url)
    program = find_chromium()
    if program is None:
        print("skipped: page_e2e: the policy is right; the rest needs chromium, which is not installed")
        return 77
    with Browser(program) as browser:
        page = Page(browser)
        browser.resize(*WIDE)
        browser.prefer("light")
        browser.open(url + "/?ask", DONE)
        assert browser.run("[...document.getElementById('model').options].map((one) => one.value)") == ["chat", "json"]
        assert "raw" in browser.run("[...document.getElementById('format').options].map((one) => one.value)")
        assert page.texts("article h2") == ["Over codes", "Local prefill"], page.text()
        page.choose("format", "aludel-p2")
        page.ask()
        answers_both_ways(page)
        shows_the_trace(page)
        draws_markdown_safely(page)
        link_estimate_follows_its_slider(page)
        says_what_was_cached(page)
        compares_honestly(page)
        follows_up(page, url)
        assert browser.problems == [], browser.problems
        shows_errors(page)
        stops(page)
        page.click("A long passage")
        assert "ferry" in page.ask(), page.text()
        fits_every_screen(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
