"""A DNS server on a loopback port for tests: A records that live for a second, no others."""

import socket
import struct
import threading
from typing import Dict, List


class FakeDns:
    def __init__(self) -> None:
        self.records: Dict[str, List[str]] = {}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def target(self, name: str, port: int) -> str:
        return f"dns://127.0.0.1:{self.port}/{name}:{port}"

    def serve(self) -> None:
        while True:
            try:
                query, caller = self.socket.recvfrom(512)
            except OSError:
                return
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode())
                at += query[at] + 1
            (kind,) = struct.unpack("!H", query[at + 1:at + 3])
            known = self.records.get(".".join(labels), [])
            found = known if kind == 1 else []
            reply = query[:2] + struct.pack("!HHHHH", 0x8580 if known else 0x8583, 1, len(found), 0, 0)
            reply += query[12:at + 5]
            for address in found:
                reply += struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)
            self.socket.sendto(reply, caller)

    def stop(self) -> None:
        self.socket.close()
