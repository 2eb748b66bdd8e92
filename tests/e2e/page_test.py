"""The gateway's page in headless Chromium, under stack.py: it asks its example over codes and beside them with the
consumer's local prefill, and shows both answers with their stages. PAGE_SCREENSHOT=FILE keeps a picture.

Exit code 77: Chromium is not installed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

TRIES_S = 200
BUDGET_MS = 30000  # of the page's own clock, which stands still while it waits for the server


def chromium(program: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory(prefix="aludel-page-") as profile:
        done = subprocess.run(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             f"--user-data-dir={profile}", f"--virtual-time-budget={BUDGET_MS}", *arguments],
            capture_output=True, text=True, timeout=40, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def finished_page(program: str, url: str) -> str:
    """The page's DOM. Its clock may run ahead of an answer that is still streaming in, and Chromium may crash or hang:
    then another try."""
    page = ""
    deadline = time.monotonic() + TRIES_S
    while time.monotonic() < deadline:
        try:
            page = chromium(program, "--dump-dom", url)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            continue
        if page.count('data-done="ok"') == 2:
            break
    return page


def check(page: str) -> None:
    cards = re.findall(r'<article class="answer"(.*?)</article>', page, re.DOTALL)
    assert len(cards) == 2, page[-3000:]
    codes, own = cards
    for card in cards:
        assert 'data-done="ok"' in card, card
        assert re.search(r'<div class="text">[^<]*ferry', card), card
        assert re.search(r'<div class="ttft">[\d.]+ ms', card), card
        widths = [float(width) for width in re.findall(r'<i title="[^"]*" style="width: ([\d.e-]+)%', card)]
        assert len(widths) >= 2 and 90 < sum(widths) < 101, widths
    # Which stages show depends on the moment: frames from the prefill server's cache arrive in no time.
    # A page that was loaded again finds the consumer's own prefix cache.
    assert ("handed over as" in codes and "less)" in codes) or "kept from an earlier handoff as" in codes, codes
    assert ">local prefill<" in own and "transfer" not in own, own
    assert re.search(r"<option[^>]*>json</option>", page), "the list of models"
    assert re.search(r'<datalist id="formats">.*<option[^>]*>raw</option>', page), "the list of wire formats"


def main() -> int:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("skipped: page_e2e: chromium is not installed")
        return 77
    url = os.environ["GATEWAY_URL"]
    with urllib.request.urlopen(url + "/", timeout=10) as reply:
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    check(finished_page(program, url + "/?ask"))
    if "PAGE_SCREENSHOT" in os.environ:
        chromium(program, f"--screenshot={os.environ['PAGE_SCREENSHOT']}", "--window-size=1180,1000",
                 *os.environ.get("PAGE_FLAGS", "").split(), url + "/?ask")
    return 0


if __name__ == "__main__":
    sys.exit(main())
