"""Images by URL: what may be fetched, from where, how much and for how long. All servers are loopback.
One file, because every case is judged by the same rules against the same small server."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BASE = {"allowed_hosts": ["*"], "max_bytes": 1000, "timeout_seconds": 5.0}


def rules(public=lambda address: True, **changes):
    """Rules that take loopback for public: an argument of the class, which no request reaches."""
    from fetch import Rules

    context = changes.pop("context", ssl.create_default_context)
    return Rules({**BASE, **changes}, public, context)


def fetch(url, gone=lambda: False, **changes):
    from fetch import Fetch

    return Fetch(rules(**changes), gone).bytes(url)


def refused(match, url, **changes):
    with pytest.raises(ValueError, match=match) as info:
        fetch(url, **changes)
    return str(info.value)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        self.server.answer(self)

    def log_message(self, *args):
        pass

    def reply(self, body=PNG, status=200, length=True, **headers):
        self.send_response(status)
        for name, value in {"Content_Type": "image/png", **headers}.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        if length:
            self.send_header("Content-Length", str(len(body) if length is True else length))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(answer, context=None):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.answer, server.seen = answer, []
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        server.at = f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}"
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


PRIVATE = (
    "127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.1.2.3", "192.0.0.8", "192.0.2.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "fe80::1",
    "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::",
    "2002:808:808::1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "3fff::1",
    "2620:4f:8000::1", "not an address", "",
)  # fmt: skip
PUBLIC = ("8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.63.0.1", "192.167.1.1", "2606:4700::1111",
          "2a00:1450::1", "2001:4860:4860::8888")  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_of_the_public_internet(address):
    from fetch import is_public

    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    from fetch import is_public

    assert is_public(address)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://2130706433/", "http://0x7f.1/", "http://0177.0.0.1/",
            "http://127.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://localhost/",
            "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/"],
)  # fmt: skip
def test_no_spelling_of_a_local_address_is_connected_to(url):
    """With the rules as they are in a deployment, even where every host is allowed."""
    from fetch import Fetch, Rules

    with pytest.raises(ValueError, match=r"does not lead to public addresses only|is not known"):
        Fetch(Rules(BASE)).bytes(url)


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (["a.example"], "a.example", True),
        (["A.Example"], "a.example", True),
        (["a.example"], "b.a.example", False),
        (["a.example"], "a.example.evil", False),
        (["*.example"], "a.example", True),
        (["*.example"], "b.a.example", True),
        (["*.example"], "example", False),
        (["*.example"], "evilexample", False),
        (["*"], "anything", True),
        ([], "a.example", False),
    ],
)  # fmt: skip
def test_the_allow_list(hosts, host, allowed):
    assert rules(allowed_hosts=hosts).allows(host) is allowed


def test_a_host_off_the_list_is_not_even_looked_up(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail("looked up"))
    message = refused("allowed_hosts", "https://other.example/x.png", allowed_hosts=["a.example"])
    assert "other.example" in message


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file:///etc/passwd", "file scheme"),
        ("ftp://a/x", "ftp scheme"),
        ("gopher://a/x", "gopher scheme"),
        ("/etc/passwd", "no scheme"),
        ("http://u:p@a/", "user or password"),
        ("http://a@b/", "user or password"),
        ("http:///x", "no host"),
        ("http://a:99999/", "not a valid address"),
        ("http://[::1/", "not a valid address"),
        ("http://a b/", "ASCII"),
        ("http://a/\r\nHost: b", "ASCII"),
        ("http://é.example/", "ASCII"),
        ("http://a\\@b/", "ASCII"),
        ("http://a/" + "\x00", "ASCII"),
    ],
)
def test_addresses_of_other_kinds(url, why):
    refused(why, url)


def test_an_image_is_fetched_with_the_hosts_own_name():
    with serve(lambda h: h.reply()) as server:
        assert fetch(f"{server.at}/a/b.png?c=%20d#frag") == PNG
        path, headers = server.seen[0]
        assert path == "/a/b.png?c=%20d"
        assert headers["Host"] == server.at.removeprefix("http://")
        assert headers["Accept-Encoding"] == "identity"
        assert not set(headers) & {"Cookie", "Authorization", "Referer"}


def test_a_name_is_looked_up_once_and_the_address_that_was_judged_is_used(monkeypatch):
    """DNS that answers otherwise the second time must not matter."""
    asked, judged = [], []
    with serve(lambda h: h.reply()) as server:
        port = server.server_port

        def look_up(host, port, **more):
            asked.append(host)
            addresses = ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]
            return [(2, 1, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        made: list = []
        connect = socket.create_connection
        monkeypatch.setattr(
            socket, "create_connection",
            lambda to, **k: made.append(to) or _real(connect, to, k),
        )  # fmt: skip
        assert (
            fetch(f"http://img.example:{port}/", public=lambda a: judged.append(a) or True) == PNG
        )
        assert server.seen[0][1]["Host"] == f"img.example:{port}"
    assert judged == ["127.0.0.1"]
    assert asked[0] == "img.example"
    assert made == [("127.0.0.1", port)]


def _real(connect, to, options):
    sock = socket.socket()
    sock.settimeout(options["timeout"])
    sock.connect(to)
    return sock


def test_one_private_address_among_several_is_enough_to_refuse(monkeypatch):
    found = [(2, 1, 6, "", (a, 80)) for a in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    monkeypatch.setattr(socket, "create_connection", lambda *a, **k: pytest.fail("connected"))
    from fetch import Fetch, Rules

    with pytest.raises(ValueError, match="public addresses only") as info:
        Fetch(Rules(BASE)).bytes("http://img.example/")
    assert "10.0.0.1" not in str(info.value)  # nor does the error say where the name leads


def test_redirects_are_followed_and_judged_by_the_same_rules():
    def answer(handler):
        step = int(handler.path.strip("/") or 0)
        if step == 0:
            return handler.reply()
        return handler.reply(b"", 302, Location=f"/{step - 1}")

    with serve(answer) as server:
        assert fetch(f"{server.at}/3") == PNG
        refused("more than 3 redirects", f"{server.at}/4")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("http://10.0.0.1/", "public addresses only"),
        ("http://localhost:1/", "allowed_hosts"),
        ("file:///etc/passwd", "file scheme"),
        ("http://u:p@127.0.0.1/", "user or password"),
        ("data:image/png;base64,AAAA", "data scheme"),
        ("//other.example/", "allowed_hosts"),
        ("", "leads nowhere"),
        ("http://a b/", "leads nowhere"),
    ],
)
def test_a_redirect_to_what_may_not_be_fetched(where, why):
    with serve(lambda h: h.reply(b"", 307, Location=where)) as server:
        refused(
            why, server.at, allowed_hosts=["127.0.0.1", "10.0.0.1"],
            public=lambda address: address == "127.0.0.1",
        )  # fmt: skip


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=img.example",
         "-addext", "subjectAltName=DNS:img.example"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def tls(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    names: list = []
    context.sni_callback = lambda sock, name, ctx: names.append(name)
    trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    return context, trusted, names


def named(monkeypatch):
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, *a, **k: [(2, 1, 6, "", ("127.0.0.1", port))]
    )  # fmt: skip


def test_https_checks_the_certificate_against_the_name(tls, monkeypatch):
    context, trusted, names = tls
    named(monkeypatch)
    with serve(lambda h: h.reply(), context) as server:
        url = f"https://img.example:{server.server_port}/"
        assert fetch(url, context=lambda: trusted) == PNG
        assert names == ["img.example"]
        refused("SSLCertVerificationError", url)  # nobody vouches for it
        other = url.replace("img", "other")
        refused("SSLCertVerificationError", other, context=lambda: trusted)


def test_no_redirect_from_https_to_http(tls, monkeypatch):
    context, trusted, _ = tls
    named(monkeypatch)
    with serve(lambda h: h.reply()) as plain:
        where = f"http://img.example:{plain.server_port}/"
        with serve(lambda h: h.reply(b"", 302, Location=where), context) as server:
            url = f"https://img.example:{server.server_port}/"
            refused("from https to http", url, context=lambda: trusted)
        assert plain.seen == []


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({"status": 404}, "answered 404"),
        ({"status": 500}, "answered 500"),
        ({"Content_Type": "text/html"}, "sent text/html, not an image"),
        ({"Content_Type": None}, "no content type"),
        ({"Content_Encoding": "gzip"}, "compressed"),
        ({"body": b"x" * 1001}, "larger than 1000 bytes"),
        ({"length": 10**12}, "larger than 1000 bytes"),
        ({"length": 100}, "closed the connection early"),
    ],
)
def test_answers_that_are_no_image_of_the_allowed_size(reply, why):
    def answer(handler):
        handler.close_connection = True
        handler.reply(**reply)

    with serve(answer) as server:
        refused(why, server.at)


def test_a_body_without_a_length_is_bounded_too():
    def endless(handler):
        handler.reply(b"", length=False)
        try:
            while True:
                handler.wfile.write(b"x" * 4096)
        except OSError:
            handler.close_connection = True

    with serve(endless) as server:
        refused("larger than 1000 bytes", server.at)


@pytest.mark.parametrize("where", ["head", "body", "nothing"])
def test_a_server_that_drips_is_left_in_time(where):
    stop = threading.Event()

    def drip(handler):
        handler.close_connection = True
        try:
            if where == "body":
                handler.reply(b"", length=900)
            elif where == "head":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while where != "nothing" and not stop.wait(0.05):
                handler.wfile.write(b"X-A: b\r\n" if where == "head" else b"x")
                handler.wfile.flush()
        except OSError:
            return
        stop.wait(5)

    with serve(drip) as server:
        started = time.monotonic()
        refused(r"longer than 0\.4 s", server.at, timeout_seconds=0.4)
        assert time.monotonic() - started < 2
        stop.set()


def test_a_look_up_that_hangs_is_left_in_time(monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: done.wait(5) or [])
    started = time.monotonic()
    refused("longer than", "http://img.example/", timeout_seconds=0.2)
    assert time.monotonic() - started < 2
    done.set()


def test_a_request_that_was_cancelled_is_not_fetched_for():
    with serve(lambda h: h.reply()) as server:
        refused("cancelled", server.at, gone=lambda: True)
        assert server.seen == []


@pytest.mark.parametrize(
    ("uri", "want"),
    [
        ("data:image/png;base64," + base64.b64encode(PNG).decode(), PNG),
        ("DATA:image/PNG;x=y;BASE64," + base64.b64encode(PNG).decode(), PNG),
        ("data:image/png,%00%01a", b"\x00\x01a"),
    ],
)
def test_data_uris(uri, want):
    assert fetch(uri, allowed_hosts=[]) == want


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("data:text/html,x", "data:image"),
        ("data:,x", "data:image"),
        ("data:image/png;base64", "data:image"),
        ("data:image/png;base64,!!!!", "not base64"),
        ("data:image/png;base64,AAA", "not base64"),
        ("data:image/png;base64," + "A" * 2000, "larger than 1000"),
        ("data:image/png," + "a" * 1001, "larger than 1000"),
        ("data:image/png," + "%61" * 5000, "larger than 1000"),
    ],
)
def test_data_uris_that_are_refused(uri, why):
    refused(why, uri)


# ---- the threads
def collect(urls, decode=None, gone=lambda: False, **changes):
    from media import Media

    media, done, got = Media(rules(**changes), decode), threading.Event(), []
    media.fetch(
        urls, lambda images: (got.append(images), done.set()),
        lambda message: (got.append(message), done.set()), gone,
    )  # fmt: skip
    assert done.wait(10)
    media.close()
    return got


def test_all_images_of_a_request_in_order_and_an_error_says_which():
    urls = ["data:image/png,a", "data:image/png,b"]
    assert collect(urls) == [[b"a", b"b"]]
    assert collect(urls, decode=lambda raw: raw.upper()) == [[b"A", b"B"]]
    assert collect([*urls, "file:///x"]) == ["image_url[2]: file scheme; use https, http or data"]

    def broken(raw):
        raise OSError("secret path")

    assert collect(urls, decode=broken) == ["image_url[0]: not a readable image (OSError)"]


def test_more_requests_than_can_wait_are_refused_at_once(monkeypatch):
    import media as module

    monkeypatch.setattr(module, "WAITING", 2)
    stop, failed = threading.Event(), []
    one = module.Media(rules(), decode=lambda raw: stop.wait(5))
    for _ in range(3):
        one.fetch(["data:image/png,a"], lambda images: None, failed.append, lambda: False)
    assert failed == ["image_url: too many images are being fetched; try again"]
    stop.set()
    one.close()


def test_places_for_images_in_messages():
    from media import with_places

    def places(messages, count=2):
        return [m["content"] for m in json.loads(with_places(json.dumps(messages), count))]

    image, text = {"type": "image"}, {"type": "text", "text": "what?"}
    user = {"role": "user", "content": "what?"}
    assert places([user, {"role": "assistant", "content": "no"}]) == [[image, image, text], "no"]
    assert places([{"role": "user", "content": "a"}, user], 1) == ["a", [image, text]]
    ready = {"role": "user", "content": [image, text]}
    assert places([ready]) == [[image, text]]
    assert places([{"role": "system", "content": "x"}]) == ["x"]
