"""A web server for a lease that does what its path says, well or badly; any Python runs it."""

import base64
import hashlib
import json
import os
import socketserver
import struct
import sys
import time


def ws(self, headers):
    key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
    sub = headers.get("sec-websocket-protocol", "")
    self.wfile.write(
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + accept
        + (b"\r\nSec-WebSocket-Protocol: " + sub.encode() if sub else b"")
        + b"\r\n\r\n"
    )
    while True:
        head = self.rfile.read(2)
        if len(head) < 2:
            return
        size = head[1] & 127
        if size == 126:
            size = struct.unpack("!H", self.rfile.read(2))[0]
        elif size == 127:
            size = struct.unpack("!Q", self.rfile.read(8))[0]
        mask = self.rfile.read(4)
        data = self.rfile.read(size)
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        data = (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")
        if head[0] & 15 == 8:
            return
        out = bytes([head[0]])
        if size < 126:
            out += bytes([size])
        elif size < 65536:
            out += bytes([126]) + struct.pack("!H", size)
        else:
            out += bytes([127]) + struct.pack("!Q", size)
        self.wfile.write(out + data)


class H(socketserver.StreamRequestHandler):
    wbufsize = 0

    def handle(self):
        try:
            while self.one():
                pass
        except OSError:
            pass

    def one(self):
        line = self.rfile.readline().split()
        if len(line) < 3:
            return False
        method, target = line[0].decode(), line[1].decode()
        headers = {}
        while h := self.rfile.readline().strip():
            k, _, v = h.decode("latin-1").partition(":")
            headers[k.lower()] = v.strip()
        body = 0
        if "content-length" in headers:
            body = len(self.rfile.read(int(headers["content-length"])))
        elif headers.get("transfer-encoding") == "chunked":
            while n := int(self.rfile.readline(), 16):
                body += len(self.rfile.read(n))
                self.rfile.readline()
            self.rfile.readline()
        path = target.partition("?")[0]
        w = self.wfile.write

        def say(data=b"ok", extra=b""):
            w(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(data) + extra + b"\r\n" + data)
            return True

        if path == "/ws" and "sec-websocket-key" in headers:
            ws(self, headers)
            return False
        if path in ("/echo", "/hops"):
            told = {"method": method, "target": target, "headers": headers, "bytes": body}
            told |= {"token": os.environ.get("WEB_TOKEN"), "connection": id(self)}
            extra = b"Connection: X-Theirs, keep-alive\r\nX-Theirs: 1\r\nKeep-Alive: timeout=5\r\n"
            extra = extra if path == "/hops" else b""
            return say(json.dumps(told).encode(), extra)
        if path == "/cookies":
            bad = (
                b"sessionid=evil",
                b"berth-app=evil",
                b"__Host-sessionid=evil; Path=/",
                b"wide=1; Domain=localhost",
            )
            lines = b"".join(b"Set-Cookie: " + one + b"\r\n" for one in (b"plain=1; Path=/", *bad))
            return say(b"ok", lines + b'Clear-Site-Data: "cookies"\r\n')
        if path == "/slow":
            time.sleep(0.2)
            return say()
        if path in ("/silent", "/hang"):
            self.rfile.read(1)
            return False
        if path == "/broken-header":
            w(b"HTTP/1.1 200 OK\r\nbad header here\r\nX\x00Y: 1\r\n\r\nhi")
            return False
        if path == "/huge-header":
            w(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300000 + b"\r\n\r\n")
            return False
        if path == "/not-http":
            w(b"SSH-2.0-OpenSSH_9.2\r\n")
            return False
        if path == "/closes":
            return False
        if path == "/upgrade-unasked":
            w(b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
            return False
        if path == "/two-lengths":
            w(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello")
            return False
        if path == "/short":
            w(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
            return False
        if path == "/endless":
            w(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                w(bytes(65536))
        if path == "/file":
            return say(bytes(int(target.partition("?")[2])))
        return say()


class S(socketserver.ThreadingUnixStreamServer):
    request_queue_size = 512
    daemon_threads = True


if __name__ == "__main__":
    S(sys.argv[1], H).serve_forever()
