"""Headless Chromium, driven over its DevTools pipe: pages with a real clock, real keys and any size of window.

Only Python's standard library. Messages are JSON, each ended by a zero byte: commands go to the browser's descriptor 3,
answers and events come from its descriptor 4.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

ANSWER_S = 60
KEYS = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36}
CONTROL = 2


def find_chromium() -> Optional[str]:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser with one page. A context manager: the browser ends with it."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="aludel-page-", ignore_cleanup_errors=True)
        # Above 9, so that neither is overwritten before it is copied.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for pipe in (os.pipe(), os.pipe()) for end in pipe]
        child_in, self.to, self.back, child_out = ends

        def place() -> None:
            os.dup2(child_in, 3)
            os.dup2(child_out, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(3, 4), preexec_fn=place, start_new_session=True)
        os.close(child_in)
        os.close(child_out)
        self.buffer = b""
        self.count = 0
        self.session: Dict[str, str] = {}
        self.problems: List[str] = []  # errors of scripts and of the content security policy
        page = next(one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.end_children()
        os.close(self.to)
        os.close(self.back)
        self.profile.cleanup()

    def end_children(self) -> None:
        """Its helper processes outlive it for a moment, and write to the profile that is about to be removed."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            time.sleep(0.01)

    def receive(self, deadline: float) -> Dict[str, Any]:
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("chromium did not answer")
            more = os.read(self.back, 1 << 16)
            if not more:
                raise RuntimeError("chromium has ended")
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method: str, **parameters: Any) -> Dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self.receive(deadline)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(answer["params"]["exceptionDetails"]))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.problems.append(answer["params"]["entry"]["text"])
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; of its promise, if it gives one."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def open(self, url: str, wanted: str) -> None:
        """Loads a page, and waits until `wanted`, an expression, is true there."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")
        self.wait(wanted)

    def wait(self, wanted: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not self.run(f"Boolean({wanted})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{wanted} did not become true within {limit_s} s")
            self.run("new Promise((done) => requestAnimationFrame(done))")

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """`scheme`: "light" or "dark"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, control: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key],
                      modifiers=CONTROL if control else 0)

    def click(self, element: str) -> None:
        """`element`: an expression. Fails where something else lies over its middle."""
        at = self.run(f"(() => {{ const one = {element}; one.scrollIntoView({{block: 'center'}});"
                      "const box = one.getBoundingClientRect();"
                      "return [box.x + box.width / 2, box.y + box.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def screenshot(self, file: Path) -> None:
        """The whole page, not only what the window shows."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
