"""A registry in this process, on loopback: openly a double, for tests only.

It does what opencontainers/distribution-spec spec.md says of pushes, pulls and referrers, keeps everything
in memory, and refuses a blob or manifest whose digest is another. Not part of engineroom.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Double:
    """State of the registry, and what was asked of it.

    Attributes:
        referrers: whether it has the referrers API (and answers OCI-Subject).
        password: when set, `user:password` of the basic authentication it wants.
    """

    def __init__(self, *, referrers: bool = True, password: str | None = None) -> None:
        self.referrers, self.password = referrers, password
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    double: Double

    def log_message(self, format: str, *args: Any) -> None:
        self.double.requests.append(f"{self.command} {self.path}")

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _may(self) -> bool:
        if self.double.password is None:
            return True
        wanted = base64.b64encode(self.double.password.encode()).decode()
        given = self.headers.get("Authorization", "")
        if given == f"Bearer token-for-{wanted}":
            return True
        realm = f"http://{self.double.host}/token"
        self._answer(401, WWW_Authenticate=f'Bearer realm="{realm}",service="double",scope="x"')
        return False

    def _handle(self) -> None:
        data = self._body()
        path, _, query = self.path.partition("?")
        if path == "/token":
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            ok = given == base64.b64encode((self.double.password or "").encode()).decode()
            body = json.dumps({"token": f"token-for-{given}"}).encode()
            self._answer(200 if ok else 401, body if ok else b"{}")
        elif not self._may():
            pass
        elif path == "/v2/":
            self._answer(200, b"{}")
        elif match := re.fullmatch(r"/v2/(.+)/(blobs|manifests|referrers)/(.+)", path):
            self._object(match[1], match[2], match[3], query, data)
        elif match := re.fullmatch(r"/v2/(.+)/blobs/uploads/", path):
            name = f"u{len(self.double.uploads)}"
            self.double.uploads[name] = b""
            self._answer(202, Location=f"/v2/{match[1]}/blobs/uploads/{name}")
        else:
            self._answer(404, b"{}")

    def _object(self, name: str, kind: str, what: str, query: str, data: bytes) -> None:
        double = self.double
        if kind == "blobs" and what.startswith("uploads/"):
            self._upload(name, what.removeprefix("uploads/"), query, data)
        elif kind == "referrers":
            self._referrers(what)
        elif kind == "manifests" and self.command == "PUT":
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            double.manifests[what] = double.manifests[digest] = data
            subject = json.loads(data).get("subject") if double.referrers else None
            more = {"OCI_Subject": subject["digest"]} if subject else {}
            self._answer(201, Docker_Content_Digest=digest, **more)
        else:
            found = (double.blobs if kind == "blobs" else double.manifests).get(what)
            self._answer(404, b"{}") if found is None else self._answer(200, found)

    def _upload(self, repository: str, name: str, query: str, data: bytes) -> None:
        if not name:
            self.double.uploads[key := f"u{len(self.double.uploads)}"] = b""
            self._answer(202, Location=f"/v2/{repository}/blobs/uploads/{key}")
            return
        self.double.uploads[name] += data
        if self.command == "PATCH":
            self._answer(202, Location=f"/v2/{repository}/blobs/uploads/{name}")
            return
        digest = dict(part.split("=", 1) for part in query.split("&"))["digest"].replace("%3A", ":")
        content = self.double.uploads.pop(name)
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            self._answer(400, b'{"errors": [{"code": "DIGEST_INVALID"}]}')
            return
        self.double.blobs[digest] = content
        self._answer(201, Docker_Content_Digest=digest)

    def _referrers(self, digest: str) -> None:
        if not self.double.referrers:
            self._answer(404, b"{}")
            return
        rows = []
        for key, data in self.double.manifests.items():
            value = json.loads(data)
            if key.startswith("sha256:") and (value.get("subject") or {}).get("digest") == digest:
                rows.append(
                    {
                        "mediaType": value["mediaType"],
                        "digest": key,
                        "size": len(data),
                        "artifactType": value["artifactType"],
                    }
                )
        self._answer(200, json.dumps({"schemaVersion": 2, "manifests": rows}).encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = _handle


@contextlib.contextmanager
def registry(**how: Any) -> Iterator[Double]:
    """The double, listening until the block ends."""
    double = Double(**how)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_Handler,), {"double": double}))
    double.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
