"""Readers of the metadata files of Iceberg: their lengths are a stranger's claims."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

from pyiceberg.avro.codecs.bzip2 import BZip2Codec
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.codecs.zstandard_codec import ZStandardCodec
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.io import InputStream
from pyiceberg.serializers import GzipCompressor

# A number has seven bits in a byte.
_LAST_SHIFT = 63


class CheckedDecoder(BinaryDecoder):
    """Reads the values of a block. pyiceberg's own decoder is compiled, and takes what a length says from the memory
    behind the block.

    :raises EOFError: the block ends before a value does
    :raises ValueError: a number has too many bytes, or a length is negative
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._end = data, 0, len(data)

    def tell(self) -> int:
        return self._at

    def read(self, n: int) -> bytes:
        begin = self._at
        self.skip(n)
        return self._data[begin : self._at]

    def skip(self, n: int) -> None:
        if n < 0:
            raise ValueError("an Avro file has a negative length")
        if n > self._end - self._at:
            raise EOFError("an Avro file ends within a value")
        self._at += n

    def read_int(self) -> int:
        number = shift = 0
        data, at = self._data, self._at
        try:
            byte = data[at]
            while byte > 127:
                if shift > _LAST_SHIFT:
                    raise ValueError("an Avro file has a number of more than 64 bits")
                number |= (byte & 127) << shift
                shift += 7
                at += 1
                byte = data[at]
        except IndexError:
            raise EOFError("an Avro file ends within a number") from None
        self._at = at + 1
        number |= byte << shift
        return (number >> 1) ^ -(number & 1)


# Metadata with tens of thousands of files or snapshots compresses to a thirtieth.
_MOST_TIMES, _MOST_MORE = 200, 4096


class UnfitMetadataError(ValueError):
    """Metadata is damaged, or larger than it says. The message quotes nothing of it."""


def _bounded(data: bytes, read: Callable[[int], bytes]) -> bytes:
    """Return what a block, or a file, decompresses to.

    :param read: decompresses a number of bytes
    :raises UnfitMetadataError: it is far more, or the block is damaged
    """
    most = _MOST_TIMES * len(data) + _MOST_MORE
    try:
        found = read(most + 1)
    except Exception as error:  # each library has its own class
        raise UnfitMetadataError(f"a compressed part of its metadata is damaged: {type(error).__name__}") from None
    if len(found) > most:
        raise UnfitMetadataError(f"a part of its metadata decompresses to more than {_MOST_TIMES} times its bytes")
    return found


class CheckedDeflate(DeflateCodec):
    """Deflate with a bound; Snappy has one by itself."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _bounded(data, lambda most: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most))


class CheckedGzip(GzipCompressor):
    """gzip with a bound, for metadata in JSON."""

    def stream_decompressor(self, inp: InputStream) -> Any:
        data = inp.read()
        return BytesIO(_bounded(data, gzip.open(BytesIO(data)).read))


class CheckedBzip2(BZip2Codec):
    """bzip2 with a bound."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _bounded(data, lambda most: bz2.BZ2Decompressor().decompress(data, most))


class CheckedZstandard(ZStandardCodec):
    """Zstandard with a bound."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        from zstandard import ZstdDecompressor

        return _bounded(data, lambda most: ZstdDecompressor().stream_reader(data).read(most))
