"""Servers of two protocol versions, as during an upgrade, refuse each other with words and go on: a proxy makes one
side's Describe messages say the version before this one.

    versions_test.py --bin build/release/bin
"""

import argparse
import json
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

from stack import ROOT, Stack, free_ports

HEADER = (ROOT / "server/rpc/handoff_version.h").read_text()
VERSION = int(re.search(r"kHandoffVersion = (\d+);", HEADER).group(1))  # type: ignore
OURS, BEFORE = bytes([8, VERSION]), bytes([8, VERSION - 1])  # field 1 of every Describe message
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA = 0
options = argparse.Namespace()


class Proxy:
    """Passes gRPC on to `upstream`, and says the version before in what goes one way: "requests" or "replies"."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.port = free_ports(1)[0]
        self.upstream = 0
        self.changed = 0
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                return
            with server:
                requests = threading.Thread(target=self._pass, args=(client, server, "requests"))
                requests.start()
                self._pass(server, client, "replies")
                requests.join()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            with source.makefile("rb") as stream:
                if way == "requests":
                    sink.sendall(stream.read(len(PREFACE)))
                while len(head := stream.read(9)) == 9:
                    payload = stream.read(struct.unpack(">I", b"\0" + head[:3])[0])
                    # Behind the five bytes that gRPC puts before a message.
                    if way == self.way and head[3] == DATA and payload[5:7] == OURS:
                        payload = payload[:5] + BEFORE + payload[7:]
                        self.changed += 1
                    sink.sendall(head + payload)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def wait_for(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not found():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within 30 s: {what}")
        time.sleep(0.1)


def get(url: str) -> Tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def ask(stack: Stack, model: str) -> Dict[str, Any]:
    question = json.loads((ROOT / "deploy/demo/questions.jsonl").read_text().splitlines()[0])
    body = {"model": model, "temperature": 0, "max_tokens": 4,
            "messages": [{"role": "user", "content": f"{question['context']}\n{question['question']}"}]}
    request = urllib.request.Request(f"{stack.url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


class Versions(unittest.TestCase):
    def start(self, proxy: Proxy, target: str, server: str) -> Stack:
        """The stack, in which `proxy` stands where configurations say `target` to reach `server`."""
        self.addCleanup(proxy.close)
        folder = tempfile.TemporaryDirectory(prefix="aludel-versions-")
        self.addCleanup(folder.cleanup)
        replaced = {target: re.sub(r'"[^"]*"', f'"localhost:{proxy.port}"', target)}
        stack = Stack(options.bin.resolve(), Path(folder.name), {}, replaced=replaced)
        self.addCleanup(stack.stop)
        proxy.upstream = stack.ports[server]["listen"]
        return stack

    def prefill_is_refused(self, way: str, words: str) -> None:
        proxy = Proxy(way)
        stack = self.start(proxy, 'prefill_targets: "127.0.0.1:7100"', "prefill")
        for model in ("chat", "json"):
            log = stack.folder / f"decode-{model}.log"
            wait_for(f"{log.name} says: {words}", lambda: words in log.read_text())
            wait_for(f"{model} is ready", lambda: get(f"{stack.url}/ready?model={model}")[0] == 200)
            answer = ask(stack, model)
            self.assertEqual(answer["aludel"]["plan"], "local", answer)
        self.assertGreater(proxy.changed, 0)

    def test_a_prefill_server_of_the_version_before_is_refused_and_prompts_are_prefilled_locally(self) -> None:
        self.prefill_is_refused("replies", f"is refused: protocol version is {VERSION - 1}, want {VERSION}")

    def test_a_decode_server_of_the_version_before_is_told_so_by_a_prefill_server(self) -> None:
        self.prefill_is_refused("requests", f"protocol version: found {VERSION - 1}, this server speaks {VERSION}")

    def test_a_decode_server_of_the_version_before_gets_no_requests_and_the_gateway_says_why(self) -> None:
        proxy = Proxy("replies")
        stack = self.start(proxy, 'decode_targets: "127.0.0.1:7200"', "decode-chat")
        words = f"speaks protocol version {VERSION - 1}, want {VERSION}"
        wait_for(words, lambda: words in get(f"{stack.url}/ready?model=chat")[1])
        self.assertEqual(get(f"{stack.url}/ready?model=chat")[0], 503)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            ask(stack, "chat")
        self.assertEqual(refused.exception.code, 503)
        refused.exception.close()
        wait_for("json is ready", lambda: get(f"{stack.url}/ready?model=json")[0] == 200)
        self.assertIn("choices", ask(stack, "json"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
