"""A gateway on a public address, under stack.py: configs/gateway-public.textproto with its files made here. Keys over
TLS, both replaced while it runs; limits; what is refused and how; pages of another origin; a client that leaves; one
log line per request; how it stops.

Exit code 77: openssl is not installed.
"""

import argparse
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Callable, Dict, List, Optional

from stack import ROOT, free_ports

WAIT_S = 20
CANCEL_S = 0.1
LAME_DUCK_S = 6
STRANGERS = 200
LINES_PER_SECOND = 20  # of those who need no key to cause them
# What openai 6.30.1 sends in a browser, as its preflight lists them.
CLIENT_HEADERS = ("authorization,content-type,user-agent,x-stainless-arch,x-stainless-helper-method,x-stainless-lang,"
                  "x-stainless-os,x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
                  "x-stainless-runtime-version,x-stainless-timeout")
ORIGIN = "https://chat.example.com"
SECRET = "the harp of Orla"


def certificate(folder: Path, name: str) -> None:
    """Replaces the gateway's key and certificate by new ones for localhost, whole files at once."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/O={name}/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost", "-keyout", folder / "new.key", "-out",
                    folder / "new.crt"], check=True, capture_output=True)
    os.replace(folder / "new.key", folder / "gateway.key")
    os.replace(folder / "new.crt", folder / "gateway.crt")


class PublicGateway:
    """The process, its clients' vocabulary, and its log."""

    def __init__(self, binaries: Path, folder: Path, stack: Path) -> None:
        self.folder = folder
        self.port, self.admin_port = free_ports(2)
        certificate(folder, "first")
        self.set_keys({"alice": "requests_per_minute=600", "bob": "requests_per_minute=2", "carol": "max_concurrent=4"})
        moved = dict(zip(re.findall(r"127\.0\.0\.1:(\d+)", (ROOT / "configs/gateway.textproto").read_text()),
                         re.findall(r"127\.0\.0\.1:(\d+)", (stack / "gateway.textproto").read_text())))
        text = (ROOT / "configs/gateway-public.textproto").read_text()
        text = text.replace("0.0.0.0:8443", f"127.0.0.1:{self.port}").replace("127.0.0.1:8081", f"127.0.0.1:{self.admin_port}")
        text = re.sub(r"127\.0\.0\.1:(7\d+)", lambda at: f"127.0.0.1:{moved[at.group(1)]}", text)
        text = re.sub(r'"(gateway\.\w+)"', lambda at: f'"{folder / at.group(1)}"', text)
        text = re.sub(r"tracing \{.*?\n\}\n", "", text, flags=re.DOTALL)
        text = re.sub(r"lame_duck_ms: \d+", f"lame_duck_ms: {LAME_DUCK_S * 1000}", text)
        self.config = text + "reload_interval_ms: 100 probe_interval_ms: 200\n"
        self.binary = binaries / "aludel-gateway"
        self.start(self.config)
        wait_for("ready", lambda: self.ask("GET", "/ready").status == 200)

    def start(self, config: str) -> None:
        (self.folder / "gateway.textproto").write_text(config)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([self.binary, "--config", self.folder / "gateway.textproto"], cwd=ROOT,
                                            stdout=log, stderr=log)

    def set_keys(self, limits: Dict[str, str]) -> None:
        lines = [f"{name} {hashlib.sha256(f'sk-{name}'.encode()).hexdigest()} {more}" for name, more in limits.items()]
        (self.folder / "new.keys").write_text("\n".join(lines) + "\n")
        os.replace(self.folder / "new.keys", self.folder / "gateway.keys")

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.folder / "gateway.crt")
        return http.client.HTTPSConnection("localhost", self.port, context=context, timeout=30)

    def ask(self, method: str, path: str, key: str = "", body: Optional[Dict] = None,
            connection: Optional[http.client.HTTPSConnection] = None) -> "Reply":
        connection = connection or self.connect()
        headers = {"Content-Type": "application/json", "x-request-id": f"test-{key or 'nobody'}"}
        if key:
            headers["Authorization"] = f"Bearer sk-{key}"
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return Reply(connection.getresponse())

    def chat(self, key: str, **more: object) -> "Reply":
        return self.ask("POST", "/v1/chat/completions", key, chat_body(**more))

    def ask_admin(self, path: str, method: str = "GET") -> "Reply":
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=30)
        connection.request(method, path)
        return Reply(connection.getresponse())

    def log_lines(self) -> List[Dict]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


class Reply:
    """A whole answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    def error(self) -> Dict:
        error = json.loads(self.text)["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        return error


def chat_body(**more: object) -> Dict:
    return {"model": "chat", "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": SECRET}], **more}


def wait_for(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if done():
                return
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline, f"not {what} within {WAIT_S} s"
        time.sleep(0.02)


def check_keys(gateway: PublicGateway) -> None:
    for key in ("", "mallory"):
        reply = gateway.chat(key)
        assert reply.status == 401 and reply.headers["WWW-Authenticate"] == "Bearer", reply.status
        assert reply.error()["code"] == "invalid_api_key", reply.text
        assert gateway.ask("GET", "/v1/models", key).status == 401
    assert gateway.ask("GET", "/v1/models", "alice").status == 200
    reply = gateway.chat("alice")
    assert reply.status == 200 and reply.headers["x-request-id"] == "test-alice", reply.text
    assert gateway.ask("GET", "/metrics", "alice").status == 404, "metrics on the public port"
    assert gateway.ask("POST", "/reset_prefix_cache", "alice").status == 404, "a reset on the public port"
    assert gateway.ask_admin("/reset_prefix_cache", "POST").status == 200
    assert gateway.ask_admin("/reset_prefix_cache").status == 405
    assert gateway.ask_admin("/load", "POST").status == 405 and gateway.ask_admin("/load").status == 200


def check_limits(gateway: PublicGateway) -> None:
    statuses = [gateway.chat("bob") for _ in range(3)]
    assert [reply.status for reply in statuses] == [200, 200, 429]
    assert 1 <= int(statuses[2].headers["Retry-After"]) <= 60, statuses[2].headers
    assert statuses[2].error()["code"] == "rate_limit_exceeded", statuses[2].text
    running = gateway.connect()
    running.request("POST", "/v1/chat/completions", json.dumps(chat_body(max_tokens=800, ignore_eos=True, stream=True, n=4)),
                    {"Authorization": "Bearer sk-carol"})
    first = running.getresponse()
    assert first.readline().startswith(b"data: ")
    second = gateway.chat("carol")
    assert second.status == 429 and "Retry-After" in second.headers, second.text
    running.close()
    wait_for("free again", lambda: gateway.chat("carol").status == 200)


def check_reload(gateway: PublicGateway) -> None:
    kept = gateway.connect()
    assert gateway.ask("GET", "/v1/models", "alice", connection=kept).status == 200
    gateway.set_keys({"alice": "", "dave": ""})
    wait_for("dave's turn", lambda: gateway.ask("GET", "/v1/models", "dave").status == 200)
    assert gateway.chat("bob").status == 401
    (gateway.folder / "gateway.keys").write_text("nonsense\n")
    certificate(gateway.folder, "second")
    wait_for("served by the new certificate", lambda: gateway.ask("GET", "/v1/models", "alice").status == 200)
    assert gateway.ask("GET", "/v1/models", "alice", connection=kept).status == 200, "an old connection was cut"


def check_refusals(gateway: PublicGateway) -> None:
    too_long = gateway.ask("POST", "/v1/chat/completions", "alice", {"model": "chat", "pad": "x" * (5 << 20)})
    assert too_long.status == 413 and too_long.error()["message"], too_long.status
    late = gateway.chat("alice", max_tokens=800, ignore_eos=True, aludel={"timeout_ms": 50})
    assert late.status == 504 and late.error()["code"] == "deadline_exceeded", (late.status, late.text)
    huge = gateway.connect()
    huge.request("POST", "/v1/chat/completions", '{"model": "chat", "temperature": 1e999}',
                 {"Authorization": "Bearer sk-alice"})
    assert huge.getresponse().status == 400


def check_cors(gateway: PublicGateway) -> None:
    """A page of an allowed origin may use the official client, and read refusals of every layer."""
    asking = gateway.connect()
    asking.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": CLIENT_HEADERS})
    preflight = Reply(asking.getresponse())
    assert preflight.status == 204 and preflight.headers["Access-Control-Allow-Origin"] == ORIGIN, preflight.headers
    allowed = preflight.headers["Access-Control-Allow-Headers"].split(", ")
    assert allowed == CLIENT_HEADERS.split(","), allowed
    for path, headers, status in (("/v1/models", {"Authorization": "Bearer sk-alice"}, 200), ("/v1/models", {}, 401),
                                  ("/v1/models", {"Transfer-Encoding": "gzip"}, 501)):
        asking = gateway.connect()
        asking.request("GET", path, headers={"Origin": ORIGIN, **headers})
        reply = Reply(asking.getresponse())
        assert reply.status == status and reply.headers["Access-Control-Allow-Origin"] == ORIGIN, reply.headers
        assert "x-request-id" in reply.headers and "Date" in reply.headers, reply.headers


def check_strangers_body(gateway: PublicGateway) -> None:
    """Refused at its header: nothing asks for the body, and nobody waits for it."""
    stranger = gateway.connect()
    stranger.putrequest("POST", "/v1/chat/completions")
    stranger.putheader("Content-Length", str(4 << 20))
    stranger.putheader("Expect", "100-continue")
    stranger.endheaders()
    assert stranger.getresponse().status == 401


def check_cancel(gateway: PublicGateway, decode_admin: str) -> None:
    """From the client's going to the decode server's own account of it; the best of three, as the machine may be busy."""

    def count(series: str) -> float:
        with urllib.request.urlopen(f"http://{decode_admin}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        return sum(float(value) for value in re.findall(rf"^{series} (\S+)$", text, re.MULTILINE))

    def cancelled() -> float:
        return count(r'aludel_requests_total\{[^}]*outcome="cancelled"[^}]*\}')

    def planned() -> float:
        return count(r"aludel_plans_total\{[^}]*\}")

    seconds = []
    for stream in (True, False, True):
        before, plans = cancelled(), planned()
        client = gateway.connect()
        client.request("POST", "/v1/chat/completions", json.dumps(chat_body(max_tokens=900, ignore_eos=True, stream=stream)),
                       {"Authorization": "Bearer sk-alice"})
        if stream:
            assert client.getresponse().readline().startswith(b"data: ")
        else:
            wait_for("at the decode server", lambda: planned() > plans)
        left = time.monotonic()
        client.sock.shutdown(socket.SHUT_RDWR)
        client.close()
        while cancelled() == before:
            assert time.monotonic() < left + WAIT_S, "never cancelled"
        seconds.append(time.monotonic() - left)
    print("cancelled at the decode server after " + ", ".join(f"{one * 1e3:.0f} ms" for one in seconds))
    assert min(seconds) < CANCEL_S, seconds


def check_strangers_lines(gateway: PublicGateway) -> None:
    """All are counted; the log is not theirs to fill."""
    def counted() -> float:
        found = re.search(r'aludel_http_requests_total\{path="/v1/models",status="401"\} (\d+)', gateway.ask_admin("/metrics").text)
        return float(found[1]) if found else 0

    def logged() -> int:
        return sum(line.get("status") == 401 for line in gateway.log_lines())

    before, lines, begin = counted(), logged(), time.monotonic()
    for _ in range(STRANGERS):
        assert gateway.ask("GET", "/v1/models").status == 401
    seconds = int(time.monotonic() - begin) + 2  # begun ones
    assert counted() - before == STRANGERS
    assert 0 < logged() - lines <= LINES_PER_SECOND * seconds, (logged() - lines, seconds)
    print(f"{STRANGERS} strangers left {logged() - lines} lines")


def check_log(gateway: PublicGateway) -> None:
    lines = gateway.log_lines()
    served = [line for line in lines if line.get("path") == "/v1/chat/completions"]
    assert {200, 401, 413, 429, 499, 504} <= {line["status"] for line in served}, served
    too_long = next(line for line in served if line["status"] == 413)
    assert too_long["request_id"] == "test-alice" and too_long["peer"] and too_long["error"], too_long
    whole = next(line for line in served if line["status"] == 200)
    for field in ("time", "level", "request_id", "trace_id", "key", "peer", "model", "plan", "prompt_tokens",
                  "completion_tokens", "ttft_ms", "queue_ms", "prefill_ms", "transfer_ms", "first_decode_ms",
                  "gateway_ms", "total_ms"):
        assert field in whole, (field, whole)
    text = (gateway.folder / "log").read_text()
    assert SECRET not in text and "sk-" not in text, "prompt text or a key in the log"


def check_stop(gateway: PublicGateway) -> None:
    """Not ready and serving, so that load balancers have time to look elsewhere; then gone."""
    assert gateway.ask_admin("/ready").status == 200
    begin = time.monotonic()
    gateway.process.terminate()
    wait_for("not ready", lambda: gateway.ask("GET", "/ready").status == 503)
    gateway.process.send_signal(signal.SIGHUP)  # ends nothing
    assert gateway.ask_admin("/ready").status == 503 and gateway.ask_admin("/health").status == 200
    assert gateway.chat("alice").status == 200
    assert time.monotonic() - begin < LAME_DUCK_S, "too slow to tell"
    assert gateway.process.wait(WAIT_S) == 0
    assert time.monotonic() - begin >= LAME_DUCK_S


def check_start_without_decode_servers(gateway: PublicGateway) -> None:
    """Its admin port says so. And whoever stops it twice means it."""
    gateway.set_keys({"alice": ""})
    nobody = free_ports(1)[0]
    gateway.start(re.sub(r'decode_targets: "[^"]+"', f'decode_targets: "127.0.0.1:{nobody}"', gateway.config))
    wait_for("alive", lambda: gateway.ask_admin("/health").status == 200)
    wait_for("loaded", lambda: "loading" not in gateway.ask_admin("/ready").text)
    not_ready = gateway.ask_admin("/ready")
    assert not_ready.status == 503 and "chat: " in not_ready.text, not_ready.text
    gateway.process.terminate()
    wait_for("not ready", lambda: "draining" in gateway.ask_admin("/ready").text)
    gateway.process.terminate()
    assert gateway.process.wait(LAME_DUCK_S / 2) == -signal.SIGTERM


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options = parser.parse_args()
    if shutil.which("openssl") is None:
        print("skipped: public_gateway: openssl is not installed")
        return 77
    stack = Path(os.environ["STACK_FOLDER"])
    decode_admin = re.search(r'admin_listen: *"([^"]+)"', (stack / "decode-chat.textproto").read_text())[1]
    with tempfile.TemporaryDirectory(prefix="aludel-public-") as folder:
        gateway = PublicGateway(options.bin.resolve(), Path(folder), stack)
        try:
            check_keys(gateway)
            check_limits(gateway)
            check_refusals(gateway)
            check_cors(gateway)
            check_strangers_body(gateway)
            check_cancel(gateway, decode_admin)
            check_reload(gateway)
            check_strangers_lines(gateway)
            check_stop(gateway)
            check_log(gateway)
            check_start_without_decode_servers(gateway)
        except Exception:
            print("\n".join((Path(folder) / "log").read_text().splitlines()[-15:]), file=sys.stderr)
            raise
        finally:
            gateway.process.kill()
            gateway.process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
