"""A service in a thread of the tests, on a free port of the loopback address, and requests to it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from elflow.serve import create_app
from elflow.serve._protocol import HttpProtocol


class Reply:
    """Status, headers and body of an answer."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = answer.status, dict(answer.getheaders()), answer.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def detail(self):
        return self.json["detail"]


class Client:
    """Requests to a service, each over a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, None, headers)

    def post(self, path, content, headers=None):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})


@contextmanager
def serving(models, http=HttpProtocol, **options):
    """A running service of these models."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(models, **options), log_level="critical", http=http, ws="none"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
