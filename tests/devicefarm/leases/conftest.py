"""Databases for the tests of leases: a SQLite file, and a real PostgreSQL server on a socket of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import program_path

sys.path.insert(0, str(Path(__file__).parent))
NO_POSTGRES = "needs PostgreSQL: apt-get install postgresql"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server that listens on a Unix socket alone, and is gone at the end."""
    initdb, server = program_path("initdb"), program_path("postgres")
    if initdb is None or server is None:
        pytest.skip(NO_POSTGRES)
    as_user: list[str] = []
    home = Path(tempfile.mkdtemp(prefix="smelt-pg-"))  # the path of a socket has at most 107 bytes
    if os.getuid() == 0:  # it refuses to run as root
        as_user = ["runuser", "-u", "postgres", "--"]
        owner = pwd.getpwnam("postgres")
        os.chown(home, owner.pw_uid, owner.pw_gid)
    data = home / "data"
    try:
        made = [*as_user, initdb, "-D", str(data), "-A", "trust", "-U", "farm", "--no-sync", "-E", "UTF8"]
        subprocess.run(made, check=True, capture_output=True, cwd=home)
        run = [*as_user, server, "-D", str(data), "-k", str(home), "-c", "listen_addresses=", "-F"]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(run, stdout=log, stderr=log, cwd=home)
        try:
            for _ in range(300):
                if (home / ".s.PGSQL.5432").exists() or process.poll() is not None:
                    break
                time.sleep(0.05)
            yield f"postgresql://farm@/postgres?host={home}"
        finally:
            process.terminate()  # runuser passes it on
            process.wait(30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/farm.db"
    found: str = request.getfixturevalue("postgres")
    from clean import clear

    clear(found)
    return found

