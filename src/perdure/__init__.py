"""Perdure: durable workflows in plain asyncio.

from perdure import Perdure, action, workflow
"""

from perdure.core.retry import Retry
from perdure.errors import (
    ActionFailed,
    ChildFailed,
    EventConflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExists,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionStuck,
    Forbidden,
    InvalidValue,
    LimitReached,
    LockLost,
    LockTaken,
    Nondeterminism,
    PerdureError,
    StoreError,
)
from perdure.flows.action import Action, action
from perdure.flows.event import Received, event
from perdure.flows.workflow import Workflow, workflow
from perdure.runtime.app import Page, Perdure
from perdure.runtime.locks import Lock
from perdure.runtime.run import Run
from perdure.runtime.settings import Settings

__version__ = "0.1.0"
__all__ = [
    "Action",
    "ActionFailed",
    "ChildFailed",
    "EventConflict",
    "ExecutionCancelled",
    "ExecutionEnded",
    "ExecutionExists",
    "ExecutionFailed",
    "ExecutionNotFound",
    "ExecutionStuck",
    "Forbidden",
    "InvalidValue",
    "LimitReached",
    "Lock",
    "LockLost",
    "LockTaken",
    "Nondeterminism",
    "Page",
    "Perdure",
    "PerdureError",
    "Received",
    "Retry",
    "Run",
    "Settings",
    "StoreError",
    "Workflow",
    "action",
    "event",
    "workflow",
]
