"""A gateway whose tokenizers take long to load, as ten real ones of 128,000 tokens do: from its first moment on it says
that it lives, what it measures, and which models are still to come, on its own port or the operator's; what it is asked
meanwhile is a 503 that names them. Needs no decode server."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, Set, Tuple

from stack import ROOT, free_ports

TOKENS = 400_000
LIMIT_S = 120
QUICK, SLOW = ["quick-1", "quick-2"], ["slow-1", "slow-2"]


def get(port: int, path: str) -> Tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def make_slow(folder: Path) -> None:
    """The demo's tokenizer with so many more tokens."""
    shutil.copytree(ROOT / "deploy/demo/chat", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for i in range(len(vocabulary), TOKENS):
        vocabulary[f"slow token {i}"] = i
    path.write_text(json.dumps(tokenizer))


def settings(folder: Path, slow: Path, admin: int) -> Tuple[int, Path]:
    (port,) = free_ports(1)
    models = "".join(f'models {{ name: "{name}" directory: "{slow if name in SLOW else ROOT / "deploy/demo/chat"}" '
                     'decode_targets: "127.0.0.1:1" }\n' for name in QUICK + SLOW)
    config = folder / "gateway.textproto"
    port_of_admin = f'admin_listen: "127.0.0.1:{admin}"\n' if admin else ""
    config.write_text(f'listen: "127.0.0.1:{port}"\n{models}{port_of_admin}')
    return port, config


def wait_for_port(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            get(port, "/health")
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the gateway does not listen"
            time.sleep(0.002)


def check(port: int, admin: int) -> Set[str]:
    """While models load; returns what was seen of them, e.g. "slow-1 loading"."""
    seen: Set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    while True:
        status, body = get(port, "/ready")
        ready: Dict = json.loads(body)
        assert status == 503, "there is no decode server"
        if ready["status"] != "loading":
            return seen
        assert time.monotonic() < deadline, ready
        seen |= {f"{name} {state}" for name, state in ready["models"].items()}
        assert get(port, "/health")[0] == 200
        if admin:
            assert get(admin, "/health")[0] == 200
            status, body = get(admin, "/ready")
            assert status == 503, body
            if "loading the tokenizers of" in body:
                seen.add("said by the operator's port")
        status, body = get(admin or port, "/metrics")
        assert status == 200 and "process_cpu_seconds_total" in body, body
        status, body = get(port, "/v1/models")
        if status != 200:  # it is, if the last one has come meanwhile
            assert status == 503 and json.loads(body)["error"]["code"] == "loading", body
            assert "just started and loads" in body and "ask again soon" in body, body
            seen |= {f"{name} named" for name in SLOW if name in body}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the binaries")
    binaries = parser.parse_args().bin.resolve()
    with tempfile.TemporaryDirectory(prefix="aludel-loading-") as folder:
        slow = Path(folder) / "slow"
        make_slow(slow)
        for admin in (0, free_ports(1)[0]):
            port, config = settings(Path(folder), slow, admin)
            process = subprocess.Popen([str(binaries / "aludel-gateway"), "--config", str(config)], cwd=ROOT)
            try:
                wait_for_port(port, process)
                if admin:
                    wait_for_port(admin, process)
                seen = check(port, admin)
                assert "slow-1 loading" in seen and "slow-2 loading" in seen, seen
                assert {f"{name} loaded" for name in QUICK} | {f"{name} named" for name in SLOW} <= seen, seen
                assert ("said by the operator's port" in seen) == bool(admin), seen
                assert json.loads(get(port, "/ready")[1])["status"] == "not ready"
            finally:
                process.terminate()
                assert process.wait(timeout=30) == 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
