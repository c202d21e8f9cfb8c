#!/usr/bin/env python3
"""A client of one of the daemon's control loops: client.py SOCKET LANE [STEPS]. Needs only Python 3.10."""
import json
import math
import mmap
import os
import socket
import struct
import sys
import time

path, lane, steps = sys.argv[1], sys.argv[2], int((sys.argv + ["1000"])[3])
server = socket.socket(socket.AF_UNIX)
server.connect(path)
server.sendall(lane.encode() + b"\n")
line, fds, _, _ = socket.recv_fds(server, 1 << 16, 3)
while not line.endswith(b"\n"):
    line += server.recv(1 << 16)
about = json.loads(line)
if "error" in about:
    sys.exit(about["error"]["message"])
memory, start, answer = mmap.mmap(fds[0], about["bytes"]), fds[1], fds[2]
views = {tensor["name"]: memoryview(memory)[tensor["offset"]:][:4 * math.prod(tensor["shape"])].cast("f")
         for tensor in about["inputs"] + about["outputs"]}
period, due, worst = 1 / about["rate_hz"], time.monotonic(), 0.0
for step in range(steps):
    for tensor in about["inputs"]:
        views[tensor["name"]][0] = step / steps
    struct.pack_into("<Q", memory, 0, time.monotonic_ns())
    os.eventfd_write(start, 1)
    os.eventfd_read(answer)
    worst = max(worst, time.monotonic() - due)
    due += period
    time.sleep(max(0.0, due - time.monotonic()))
print({tensor["name"]: list(views[tensor["name"]])[:8] for tensor in about["outputs"]}, f"worst {worst * 1e6:.0f} us")
