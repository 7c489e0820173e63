"""Stores and fetches over many short connections; each answer must be the right one."""

import socket
import sys
import threading
import time

errors = []


def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError("nobody listens")


def client(port, name):
    try:
        for connection in range(40):
            with connect(port) as sock, sock.makefile("rb") as answers:
                for request in range(50):
                    value = b"%d-%d-%d" % (name, connection, request)
                    sock.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (name, len(value), value))
                    assert answers.readline() == b"STORED\r\n"
                    sock.sendall(b"get k%d\r\n" % name)
                    assert answers.readline() == b"VALUE k%d 0 %d\r\n" % (name, len(value))
                    assert answers.readline() == value + b"\r\n"
                    assert answers.readline() == b"END\r\n"
    except Exception as error:
        errors.append(error)


threads = [threading.Thread(target=client, args=(int(sys.argv[1]), n)) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(repr(errors) if errors else 0)
