# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy for tests: it knows CONNECT alone, and leads every host to one address."""

import contextlib
import socket
import threading


def _copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class ConnectProxy:
    """Leads to `target`, HOST:PORT. `asked`: the lines of CONNECT."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self.asked = []
        self._threads = []
        self._sockets = []
        self._run(self._accept)

    def _run(self, work, *arguments):
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self._run(self._serve, self._listener.accept()[0])

    def _serve(self, client):
        self._sockets.append(client)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := client.recv(1)):
                return
            head += data
        self.asked.append(head.split(b"\r\n")[0].decode())
        server = socket.create_connection(self._target)
        self._sockets.append(server)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        self._run(_copy, client, server)
        _copy(server, client)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()
