"""A caller that asks for the largest answers there are, again and again, until it is killed.

    python greedy_client.py SOCKET KEY RPC REQUEST

It says `asking` once it has begun; every answer is read and thrown away.
"""

from __future__ import annotations

import http.client
import socket
import sys

PIECE = 1 << 20


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def main(path: str, key: str, rpc: str, request: str) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    sys.stdout.write("asking\n")
    sys.stdout.flush()
    while True:
        connection = _OverSocket(path)
        connection.request("POST", f"/sandbox.v1.SandboxService/{rpc}", request, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(answer.read(1000).decode())
        while answer.read(PIECE):
            pass
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
