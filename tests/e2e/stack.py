"""Runs a command against the three servers: one prefill, two decodes and a gateway with the demo pair.

    stack.py --bin build/release/bin -- COMMAND ...

The servers take free loopback ports, so several stacks can run side by side; the command finds the
gateway in GATEWAY_URL and the servers' configurations and logs in STACK_FOLDER. --add NAME=TEXT appends
settings to the configuration of the server NAME; --replace OLD=NEW replaces a text in every one;
--chat-template FILE gives the gateway another template for the model "chat". Exits with the command's code; a
server that does not start, or ends before the command, is an error that shows its last lines. Needs deploy/demo
and configs/ of this repository; only Python's standard library.
"""

import argparse
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List, Optional

ROOT = Path(__file__).resolve().parents[2]
# Tests that look at plans mean what was planned, not what a busy machine made late.
PATIENCE = "\nhedge { late_min_ms: 5000 }\n"
SERVERS = {"prefill": "aludel-prefill", "decode-chat": "aludel-decode", "decode-json": "aludel-decode",
           "gateway": "aludel-gateway"}
READY_S = 90


def own_kernels() -> str:
    """For an `engine`, where answers shall not depend on what else is in a batch or a cache: on a CPU with AMX a library multiplies
    many rows of bf16, elsewhere our own kernels do, by which they do not (server/gateway/API.md)."""
    return ' instructions: "avx512_bf16"' if "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8") else ""


def free_ports(count: int) -> List[int]:
    """Ports that nobody listens on at this moment, all different. They are below the ephemeral ones, so that no connection
    and no port that a server opens for itself takes one before its server has it."""
    ports: List[int] = []
    for port in random.sample(range(10000, 30000), 20000):
        if len(ports) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
    return ports


class Stack:
    """The servers, from start to stop."""

    def __init__(self, binaries: Path, folder: Path, added: Dict[str, str],
                 chat_template: Optional[Path] = None, replaced: Optional[Dict[str, str]] = None) -> None:
        """`replaced`: texts to replace in every server's configuration, where they occur."""
        self.folder = folder
        texts = {name: (ROOT / "configs" / f"{name}.textproto").read_text() for name in SERVERS}
        for old, new in (replaced or {}).items():
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        if chat_template is not None:
            model = folder / "chat"
            model.mkdir()
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (model / file).symlink_to(ROOT / "deploy/demo/chat" / file)
            (model / "chat_template.jinja").symlink_to(chat_template.resolve())
            texts["gateway"] = texts["gateway"].replace("deploy/demo/chat", str(model))
        used = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", "".join(texts.values()))))
        moved = dict(zip(used, free_ports(len(used))))
        self.ports: Dict[str, Dict[str, int]] = {}
        self.processes: Dict[str, subprocess.Popen] = {}
        for name, text in texts.items():
            text = re.sub(r"127\.0\.0\.1:(\d+)", lambda at: f"127.0.0.1:{moved[at.group(1)]}", text)
            if name.startswith("decode"):
                text += PATIENCE
            (folder / f"{name}.textproto").write_text(text + added.get(name, ""))
            self.ports[name] = {key: int(port) for key, port in
                                re.findall(r"^(\w*listen): *\"127\.0\.0\.1:(\d+)\"", text, re.MULTILINE)}
        self.url = f"http://127.0.0.1:{self.ports['gateway']['listen']}"
        for name, binary in SERVERS.items():
            with open(folder / f"{name}.log", "wb") as log:
                self.processes[name] = subprocess.Popen(
                    [str(binaries / binary), "--config", str(folder / f"{name}.textproto")], cwd=ROOT,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log_tails(self) -> str:
        """The last lines of every server."""
        return "\n".join(f"--- {name}\n" + "\n".join((self.folder / f"{name}.log").read_text().splitlines()[-15:])
                         for name in SERVERS)

    def check(self) -> None:
        """Raises when a server has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}\n{self.log_tails()}")

    def wait(self, url: str, wanted: str) -> None:
        """Until a GET of `url` is answered with 200 and a body in which the regular expression is found."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            self.check()
            try:
                with urllib.request.urlopen(url, timeout=2) as reply:
                    if re.search(wanted, reply.read().decode(), re.MULTILINE):
                        return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{url} was not ready within {READY_S} s\n{self.log_tails()}")

    def wait_until_ready(self) -> None:
        for name in ("decode-chat", "decode-json"):
            self.wait(f"http://127.0.0.1:{self.ports[name]['admin_listen']}/metrics",
                      r'^aludel_prefill_target_state\{[^}]*state="ready"[^}]*\} 1$')
        for model in ("chat", "json"):
            self.wait(f"{self.url}/ready?model={model}", "")

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    parser.add_argument("--add", action="append", default=[], metavar="NAME=TEXT", help="settings for one server")
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW", help="in every configuration")
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="for the gateway's model \"chat\"")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aludel-stack-") as folder:
        added = dict(one.split("=", 1) for one in options.add)
        replaced = dict(one.split("=", 1) for one in options.replace)
        stack = Stack(options.bin.resolve(), Path(folder), added, options.chat_template, replaced)
        try:
            stack.wait_until_ready()
            code = subprocess.call(options.command, env=dict(os.environ, GATEWAY_URL=stack.url, STACK_FOLDER=folder))
            stack.check()
            if code not in (0, 77):
                print(stack.log_tails(), file=sys.stderr)
            return code
        except RuntimeError as error:
            print(f"stack: {error}", file=sys.stderr)
            return 1
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
