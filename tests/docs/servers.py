"""Databases for the pages whose code needs a server: each page has one of its own, named by DATABASE_URL."""

from __future__ import annotations

import itertools
import os
from urllib.parse import urlsplit, urlunsplit

import asyncpg

#: What the code of a page asks the environment for.
DATABASE, REDIS = "DATABASE_URL", "REDIS_URL"

_numbers = itertools.count(1)


def address_of(server: str) -> str:
    """The address of a database on this server that nobody else uses."""
    return urlunsplit(urlsplit(server)._replace(path=f"/page_{os.getpid()}_{next(_numbers)}"))


async def create(address: str) -> None:
    await _execute(address, "create database {name}")


async def drop(address: str) -> None:
    await _execute(address, "drop database if exists {name} with (force)")


async def _execute(address: str, statement: str) -> None:
    parts = urlsplit(address)
    connection = await asyncpg.connect(urlunsplit(parts._replace(path="/postgres")))
    try:
        await connection.execute(statement.format(name=f'"{parts.path[1:]}"'))
    finally:
        await connection.close()
