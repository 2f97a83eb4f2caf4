"""Relay packets between network namespaces with delay, jitter and loss.

`rough_relay.py DELAY_MS JITTER_MS LOSS NAMESPACE=ADDRESS …` gives every namespace a network device with that address,
prints "ready", and relays packets until it is killed. Each packet has its own delay, so packets are reordered.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_LARGEST = 65536


def main() -> None:
    delay_s, jitter_s, loss = float(sys.argv[1]) * 1e-3, float(sys.argv[2]) * 1e-3, float(sys.argv[3])
    devices: dict[bytes, int] = {}  # by address
    for word in sys.argv[4:]:
        namespace, _, address = word.partition("=")
        devices[socket.inet_aton(address)] = _open_device(namespace, address)
    print("ready", flush=True)
    drawn = random.Random(1)
    under_way: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select(list(devices.values()), [], [], wait)
        now = time.monotonic()
        for device in ready:
            packet = os.read(device, _LARGEST)
            target = devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if target is not None and drawn.random() >= loss:
                number += 1
                due = now + delay_s + jitter_s * drawn.uniform(-1.0, 1.0)
                heapq.heappush(under_way, (due, number, target, packet))
        while under_way and under_way[0][0] <= now:
            _, _, target, packet = heapq.heappop(under_way)
            os.write(target, packet)


def _open_device(namespace: str, address: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"{namespace} cannot be entered")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", b"net", _IFF_TUN | _IFF_NO_PI))
    for words in (["addr", "add", f"{address}/24", "dev", "net"], ["link", "set", "net", "up"]):
        subprocess.run(["ip", *words], check=True)
    return device


if __name__ == "__main__":
    main()
