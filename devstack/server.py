"""What the servers of the stack have in common: a directory that goes when they go, and ways to be stopped."""

import abc
import shutil
from pathlib import Path
from typing import Self

from devstack.process import ServerProcess


class Stack(abc.ABC):
    """Something that is started by `with` and leaves nothing behind at its end."""

    directory: Path

    @abc.abstractmethod
    def start(self) -> Self:
        """Start, and wait until it can be used."""

    @abc.abstractmethod
    def kill(self) -> None:
        """SIGKILL to all of its processes."""

    def close(self) -> None:
        """Stop, without ceremony, and remove the files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(Stack):
    """A server of one process, whose port and data outlive its being stopped or killed."""

    process: ServerProcess

    def stop(self) -> None:
        """Shut down in order. Data and port stay."""
        self.process.stop()

    def restart(self) -> None:
        """Stop in order and start again, on the same port and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL to the server and what it started. Data and port stay."""
        self.process.kill()

    def pause(self) -> None:
        """Freeze: connections stay open, requests get no answer."""
        self.process.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self.process.resume()
