"""One trace across gateway, decode and prefill server, as a small OTLP/HTTP collector of this test receives it.

    traces_test.py --bin build/release/bin
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Dict, List

from stack import SERVERS, Stack

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WAIT_S = 30


class Collector(BaseHTTPRequestHandler):
    """Keeps every span with its service's name."""

    spans: List[Dict] = []

    def do_POST(self) -> None:  # the name is http.server's
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
        for resource in body["resourceSpans"]:
            names = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
            for scope in resource["scopeSpans"]:
                self.spans.extend(dict(span, service=names["service.name"]) for span in scope["spans"])
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: object) -> None:
        pass


def ask(url: str, traceparent: str, question: int) -> str:
    """The trace that the answer names. A question that was asked before is not handed over again."""
    entry = json.loads(Path("deploy/demo/questions.jsonl").read_text().splitlines()[question])
    body = {"model": "chat", "max_tokens": 8, "temperature": 0, "aludel": {"fidelity": "fast"},
            "messages": [{"role": "user", "content": entry["context"] + "\n" + entry["question"]}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "traceparent": traceparent})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.headers["traceparent"].split("-")[1]


def spans_of(trace: str, count: int) -> Dict[str, Dict]:
    """By service and the first word of its name, once `count` have come."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = {f"{one['service']} {one['name'].split()[0]}": one for one in Collector.spans if one["traceId"] == trace}
        if len(found) == count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"want {count} spans of {trace}, found {Collector.spans}")


def attributes(span: Dict) -> Dict[str, object]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def check(url: str) -> None:
    assert ask(url, f"00-{TRACE}-{PARENT}-01", 0) == TRACE
    spans = spans_of(TRACE, 4)
    chain = ["aludel-gateway chat", "aludel-decode decode", "aludel-decode handoff", "aludel-prefill prefill"]
    parent = PARENT
    for name in chain:
        assert spans[name]["parentSpanId"] == parent, (name, spans[name])
        assert int(spans[name]["startTimeUnixNano"]) < int(spans[name]["endTimeUnixNano"])
        parent = spans[name]["spanId"]
    outermost = attributes(spans[chain[0]])
    assert outermost["gen_ai.operation.name"] == "chat" and outermost["gen_ai.request.model"] == "chat", outermost
    assert outermost["gen_ai.provider.name"] == "aludel" and outermost["gen_ai.response.model"] == "chat", outermost
    assert int(outermost["gen_ai.request.max_tokens"]) == 8 and outermost["gen_ai.request.temperature"] == 0, outermost
    assert int(outermost["gen_ai.usage.input_tokens"]) > 100 and int(outermost["gen_ai.usage.output_tokens"]) > 0
    assert outermost["aludel.plan"] == "remote" and outermost["gen_ai.server.time_to_first_token"] > 0
    shipped = int(attributes(spans[chain[3]])["aludel.payload_bytes"])
    assert shipped == int(attributes(spans[chain[2]])["aludel.payload_bytes"]) == int(outermost["aludel.payload_bytes"])
    text = json.dumps(Collector.spans)
    assert "Zora" not in text, "prompt text in a span"
    # Not sampled by its caller: nobody reports it. A trace that begins here is complete.
    unsampled = "0" * 31 + "7"
    ask(url, f"00-{unsampled}-{PARENT}-00", 1)
    own = ask(url, "", 2)
    assert "parentSpanId" not in spans_of(own, 4)["aludel-gateway chat"]
    assert not [one for one in Collector.spans if one["traceId"] == unsampled]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="folder of the server binaries")
    options = parser.parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    setting = f'\ntracing {{ otlp_endpoint: "http://127.0.0.1:{collector.server_port}/v1/traces" }}\n'
    with tempfile.TemporaryDirectory(prefix="aludel-traces-") as folder:
        stack = Stack(options.bin.resolve(), Path(folder), {name: setting for name in SERVERS})
        try:
            stack.wait_until_ready()
            check(stack.url)
            stack.check()
        except Exception:
            print(stack.log_tails(), file=sys.stderr)
            raise
        finally:
            stack.stop()
            collector.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
