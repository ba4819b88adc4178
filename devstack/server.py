"""Base classes of the servers: a temporary directory, and ways to stop."""

import abc
import shutil
from pathlib import Path
from typing import Self

from devstack.process import ServerProcess


class Stack(abc.ABC):
    """One or more processes that `with` starts. At the end they are stopped and their files are removed."""

    directory: Path

    @abc.abstractmethod
    def start(self) -> Self:
        """Start, and wait until requests are answered."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to all processes."""

    def close(self) -> None:
        """Kill all processes and remove the files."""
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
    """A server of one process. Port and data outlive a stop or kill."""

    process: ServerProcess

    def stop(self) -> None:
        """Shut down in order. Data and port stay."""
        self.process.stop()

    def restart(self) -> None:
        """Stop in order and start again, on the same port and data."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to the server and its descendants. Data and port stay."""
        self.process.kill()

    def pause(self) -> None:
        """Pause the server: connections stay open, requests get no answer."""
        self.process.pause()

    def resume(self) -> None:
        """Resume after :meth:`pause`."""
        self.process.resume()
