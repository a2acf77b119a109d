"""Images by URL: `data:`, and http(s) from hosts of an allow-list.

The server fetches what a stranger names, so an address is looked up once, must be public, and is the
one that is connected to; redirects are judged by the same rules. Nothing but http, https and data is
opened, and size and time are bounded. Errors do not say where a name leads.
"""

import base64
import binascii
import collections
import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
import urllib.parse

from runtime_api import RequestError

REDIRECTS, PIECE = 3, 65536
_URL = re.compile(r"[!-~]+")  # printable ASCII: anything else must come percent-encoded
# Of IPv6, global unicast without what embeds or tunnels IPv4, documentation and the like; of IPv4, all
# but the IANA special-purpose registry, multicast and the reserved rest. `ipaddress.is_global` differs
# between Python's releases.
_V6 = ipaddress.ip_network("2000::/3")
_NOT_PUBLIC = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24",
        "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48",
        "3fff::/20",
    )
]  # fmt: skip


def is_public(address):
    """Whether an IP address is one of the public internet; what cannot be read is not."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # with a scope, such as fe80::1%eth0
        return False
    if ip.version == 6 and ip not in _V6:
        return False
    return not any(ip.version == net.version and ip in net for net in _NOT_PUBLIC)


class Rules:
    """What may be fetched.

    Args:
        config: {"allowed_hosts": [...], "max_bytes": n, "timeout_seconds": s} of the spec.
        public, context: whether an address may be connected to, and the maker of a TLS context; only
            tests give others.
    """

    def __init__(self, config, public=is_public, context=ssl.create_default_context):
        self.hosts = [host.lower() for host in config["allowed_hosts"]]
        self.max_bytes, self.seconds = config["max_bytes"], config["timeout_seconds"]
        self.public, self.context = public, context

    def allows(self, host):
        """Whether the list has the host: its name, ``*.`` and a parent's name, or ``*``."""
        return any(
            host == rule or rule == "*" or (rule.startswith("*.") and host.endswith(rule[1:]))
            for rule in self.hosts
        )


class Fetch:
    """Fetches one request's images within one time limit.

    Args:
        rules: `Rules`. gone: callable, true once nobody waits for the images.
    """

    def __init__(self, rules, gone=lambda: False):
        self._rules, self._gone = rules, gone
        self._deadline = time.monotonic() + rules.seconds

    def bytes(self, url):
        """The bytes of one image.

        Raises:
            RequestError: not allowed, not an image, too large, too slow, or not to be had.
        """
        if url[:5].lower() == "data:":
            return self._data(url)
        for _ in range(REDIRECTS + 1):
            answer, then = self._get(_split(url))
            if then is None:
                return answer
            if url.lower().startswith("https:") and not then.lower().startswith("https:"):
                raise RequestError("a redirect leads from https to http")
            url = then
        raise RequestError(f"more than {REDIRECTS} redirects")

    def _left(self):
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RequestError(f"took longer than {self._rules.seconds} s")
        if self._gone():
            raise RequestError("the request was cancelled")
        return left

    def _data(self, url):
        head, comma, body = url[5:].partition(",")
        kind, *marks = head.lower().split(";")
        if not comma or not kind.strip().startswith("image/"):
            raise RequestError("a data: URI must be data:image/...")
        most = self._rules.max_bytes
        if len(body) > most * 4:  # each byte is at most %XX
            raise RequestError(f"larger than {most} bytes")
        raw = urllib.parse.unquote_to_bytes(body)
        if "base64" in (mark.strip() for mark in marks):
            try:
                raw = base64.b64decode(raw, validate=True)
            except (binascii.Error, ValueError):
                raise RequestError("the data: URI is not base64") from None
        if len(raw) > most:
            raise RequestError(f"larger than {most} bytes")
        return raw

    def _get(self, parts):
        """(bytes, None), or (None, where a redirect leads)."""
        host, port = parts.host, parts.port
        if not self._rules.allows(host):
            raise RequestError(
                f"host {host[:80]} is not in serving.features.multimodal.allowed_hosts"
            )
        raw = self._connect(host, port)
        # Nothing else bounds a peer that sends a byte now and then.
        sockets = [raw]
        timer = threading.Timer(self._left(), _shut, (sockets,))
        timer.daemon = True
        timer.start()
        try:
            if parts.secure:
                sockets[0] = self._rules.context().wrap_socket(
                    raw, server_hostname=host, do_handshake_on_connect=False
                )
                sockets[0].do_handshake()
            return self._ask(parts, sockets[0])
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._left()  # a timer that struck shows as a broken connection
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"could not be fetched: {type(error).__name__}") from None
        finally:
            timer.cancel()
            sockets[0].close()

    def _connect(self, host, port):
        found = self._look_up(host, port)
        if not found or not all(map(self._rules.public, found)):
            raise RequestError(f"host {host[:80]} does not lead to public addresses only")
        for address in found[:4]:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, port), timeout=self._left())
        self._left()
        raise RequestError(f"host {host[:80]} does not answer")

    def _look_up(self, host, port):
        """Addresses of a host; the system's resolver has no time limit of its own."""
        found = []

        def ask():
            with contextlib.suppress(OSError, UnicodeError):
                found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))

        thread = threading.Thread(target=ask, name="look-up", daemon=True)
        thread.start()
        thread.join(self._left())
        if not found:
            self._left()
            raise RequestError(f"host {host[:80]} is not known")
        return list(dict.fromkeys(entry[4][0] for entry in found[0]))

    def _ask(self, parts, sock):
        sock.settimeout(self._left())
        connection = http.client.HTTPConnection(parts.host, parts.port)
        connection.sock = sock
        connection.putrequest("GET", parts.target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", parts.authority)
        connection.putheader("Accept", "image/*")
        connection.putheader("Accept-Encoding", "identity")
        connection.putheader("User-Agent", "engineroom")
        connection.putheader("Connection", "close")
        connection.endheaders()
        answer = connection.getresponse()
        if answer.status in (301, 302, 303, 307, 308):
            where = answer.headers.get("Location")
            if not where or not _URL.fullmatch(where):
                raise RequestError("a redirect leads nowhere")
            return None, urllib.parse.urljoin(parts.url, where)
        if answer.status != 200:
            raise RequestError(f"the host answered {answer.status}")
        kind = answer.headers.get("Content-Type", "").strip().lower()
        if not kind.startswith("image/"):
            raise RequestError(f"the host sent {kind[:40] or 'no content type'}, not an image")
        if answer.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise RequestError("the host sent compressed content that was not asked for")
        return self._body(answer, sock), None

    def _body(self, answer, sock):
        most, length = self._rules.max_bytes, answer.length
        pieces, size = [], 0
        while length is None or length <= most:
            sock.settimeout(self._left())
            piece = answer.read1(PIECE)
            if not piece:
                if length is not None and size < length:
                    raise RequestError("the host closed the connection early")
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break
        raise RequestError(f"larger than {most} bytes")


_Parts = collections.namedtuple("_Parts", "url host port secure target authority")


def _split(url):
    if not _URL.fullmatch(url) or "\\" in url:
        raise RequestError("an address must be ASCII without blanks; encode the rest as %XX")
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        raise RequestError("not a valid address") from None
    if parts.scheme not in ("http", "https"):
        raise RequestError(f"{parts.scheme[:20] or 'no'} scheme; use https, http or data")
    if "@" in parts.netloc:
        raise RequestError("an address must not have a user or password")
    host = (parts.hostname or "").rstrip(".")
    if not host:
        raise RequestError("the address has no host")
    secure = parts.scheme == "https"
    authority = f"[{host}]" if ":" in host else host
    if port is not None:
        authority += f":{port}"
    target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    return _Parts(url, host, port or (443 if secure else 80), secure, target, authority)


def _shut(sockets):
    # Not the method of an SSL socket, which another thread is reading from.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sockets[0], socket.SHUT_RDWR)
