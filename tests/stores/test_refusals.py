"""Which errors of a server say that it will never take what one execution writes, and which are about the server."""

from __future__ import annotations

import sqlite3
from typing import Any

import asyncpg
import pytest
from botocore.exceptions import ClientError
from pymongo.errors import OperationFailure

from perdure.errors import REFUSALS
from perdure.stores.dynamodb import trouble as dynamodb
from perdure.stores.mongodb import trouble as mongodb
from perdure.stores.postgres import trouble as postgres
from perdure.stores.sqlite import trouble as sqlite


def answer(code: str) -> Exception:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return dynamodb.meaning(ClientError(response, "TransactWriteItems"), "there")


def failure(code: int) -> Exception:
    return mongodb.meaning(OperationFailure("no", code), "there", writes=True)


def state(kind: type[Exception]) -> Exception:
    return postgres.meaning(kind("no"), "there", writes=True)


def code(number: int) -> Exception:
    error = sqlite3.DataError("no")
    error.sqlite_errorcode = number
    kind, text = sqlite.meaning(error)
    return kind(text)


@pytest.mark.parametrize(
    "error",
    [
        answer("ItemCollectionSizeLimitExceededException"),
        answer("ValidationException"),
        failure(22),
        failure(121),
        failure(257),
        failure(10334),
        state(asyncpg.CheckViolationError),
        state(asyncpg.ProgramLimitExceededError),
        state(asyncpg.UntranslatableCharacterError),
        code(sqlite3.SQLITE_TOOBIG),
        code(sqlite3.SQLITE_MISMATCH),
    ],
)
def test_it_is_about_one_execution(error: Exception) -> None:
    assert isinstance(error, REFUSALS)


@pytest.mark.parametrize(
    "error",
    [
        answer("AccessDeniedException"),
        answer("ExpiredTokenException"),
        answer("KMSDisabledException"),
        answer("ThrottlingException"),
        failure(13),
        failure(112),
        failure(14031),
        state(asyncpg.InsufficientPrivilegeError),
        state(asyncpg.DiskFullError),
        state(asyncpg.DataCorruptedError),
        state(asyncpg.UniqueViolationError),
        code(sqlite3.SQLITE_FULL),
        code(sqlite3.SQLITE_CORRUPT),
        code(sqlite3.SQLITE_BUSY),
    ],
)
def test_it_is_about_the_server(error: Exception) -> None:
    assert not isinstance(error, REFUSALS)
