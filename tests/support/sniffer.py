"""What crosses the network to and from an address of this machine, as another machine on the way would see it."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import sys
import threading
from types import TracebackType
from typing import Self

_ALL_PROTOCOLS, _SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 3, 26, 33

_SOL_PACKET, _PACKET_STATISTICS = 263, 6

_MOST_BYTES, _BUFFER_BYTES = 1 << 18, 64 << 20

_OUTGOING = 4


class Sniffer:
    """Collects the payload of all TCP connections to and from an address of the loopback network.

    :param address: of this machine, such as 127.0.0.2
    :raises PermissionError: only root may look at packets
    """

    def __init__(self, address: str) -> None:
        self.flows: dict[bytes, list[tuple[int, bytes]]] = {}
        self.dropped = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        self._attach(_of_address(address))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.settimeout(0.1)
        self._socket.bind(("lo", 0))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def seen(self) -> bytes:
        """All that crossed, connection by connection.

        :raises RuntimeError: the kernel dropped packets, which nobody has looked at
        """
        if self.dropped:
            raise RuntimeError(f"{self.dropped} packets were dropped")
        return b"\n".join(map(_whole, self.flows.values()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        statistics = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self.dropped = int.from_bytes(statistics[4:], sys.byteorder)
        self._socket.close()

    def _run(self) -> None:
        # What has arrived when the block ends is read, too.
        while True:
            try:
                frame, (_, _, direction, *_) = self._socket.recvfrom(_MOST_BYTES)
            except TimeoutError:
                if self._stop.is_set():
                    return
                continue
            # A frame of the loopback device is seen twice.
            if direction != _OUTGOING:
                self._add(frame[14:])

    def _add(self, packet: bytes) -> None:
        header, protocol = (packet[0] & 15) * 4, packet[9]
        if protocol != socket.IPPROTO_TCP:
            return
        segment = packet[header : int.from_bytes(packet[2:4], "big") or None]
        connection = packet[12:20] + segment[:4]
        if payload := segment[(segment[12] >> 4) * 4 :]:
            self.flows.setdefault(connection, []).append((int.from_bytes(segment[4:8], "big"), payload))

    def _attach(self, instructions: list[tuple[int, int, int, int]]) -> None:
        program = b"".join(
            code.to_bytes(2, "little") + bytes([yes, no]) + value.to_bytes(4, "little")
            for code, yes, no, value in instructions
        )
        buffer = ctypes.create_string_buffer(program)
        address = ctypes.addressof(buffer).to_bytes(8, "little")
        filter_ = len(instructions).to_bytes(2, "little") + bytes(6) + address
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)


def _whole(segments: list[tuple[int, bytes]]) -> bytes:
    """Return what a connection carried one way: segments may be sent again, and come in another order."""
    first, _ = segments[0]
    # Sequence numbers begin anywhere, and wrap around.
    placed = sorted((((number - first + (1 << 31)) % (1 << 32), payload) for number, payload in segments))
    whole, end = bytearray(), 0
    for place, payload in placed:
        if place + len(payload) > end:
            whole += payload[max(0, end - place) :]
            end = place + len(payload)
    return bytes(whole)


def _of_address(address: str) -> list[tuple[int, int, int, int]]:
    """The kernel's filter for packets of an address: other packets would be too many."""
    load_half, load, equal, accept = 0x28, 0x20, 0x15, 0x06
    number = int(ipaddress.IPv4Address(address))
    return [
        (load_half, 0, 0, 12),
        (equal, 0, 5, 0x0800),
        (load, 0, 0, 26),
        (equal, 2, 0, number),
        (load, 0, 0, 30),
        (equal, 0, 1, number),
        (accept, 0, 0, _MOST_BYTES),
        (accept, 0, 0, 0),
    ]
