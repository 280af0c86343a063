"""Claims on work: a claim belongs to one process and ends with it.

So a trial that the database calls running, but that nobody has claimed, belongs to a dead process.
No clock and no heartbeat is needed. A machine that is switched off or disconnected does not close
its connection: the server probes it, and frees its claims within a minute.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

PAUSE = 0.05
"""Seconds between two looks at a claim that another process holds."""

TIMEOUT = 10
"""Seconds that a database server may take to answer."""

ALIVE = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
"""When a server asks after a silent connection, in seconds, and how often before it ends it."""

Release = Callable[[], object]


class Claims(ABC):
    """Claims by name, among all processes that work on one study."""

    @abstractmethod
    def take(self, what: str) -> Release | None:
        """Claim `what`; returns a function that releases it, or None if another process has it."""

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Wait until `what` is free, and hold it inside the block."""
        while (release := self.take(what)) is None:
            time.sleep(PAUSE)
        try:
            yield
        finally:
            release()


class FileClaims(Claims):
    """Locks on files, among the processes of one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, what: str) -> Release | None:
        lock = FileLock(self.folder / what)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock.release


class DatabaseClaims(Claims):
    """Advisory locks of PostgreSQL, among machines; the server frees them with the connection."""

    def __init__(self, url: str, study: str) -> None:
        import sqlalchemy

        self.study = study
        self._sql = sqlalchemy
        asked = " ".join(f"-c {name}={value}" for name, value in ALIVE.items())
        given = sqlalchemy.make_url(url).query.get("options", "")
        # Without a pool: to close a connection is to end the session that holds the lock.
        self._engine = sqlalchemy.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=sqlalchemy.NullPool,
            connect_args={"connect_timeout": TIMEOUT, "options": f"{given} {asked}"},
        )

    def take(self, what: str) -> Release | None:
        digest = hashlib.sha256(f"infolm {self.study} {what}".encode()).digest()
        key = int.from_bytes(digest[:8], "big", signed=True)
        connection = self._engine.connect()
        if connection.scalar(self._sql.select(self._sql.func.pg_try_advisory_lock(key))):
            return connection.close
        connection.close()
        return None
