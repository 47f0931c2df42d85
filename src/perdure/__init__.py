"""Perdure: durable workflows in plain asyncio.

from perdure import Perdure, action, workflow
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.core.breaker import Breaker
from perdure.core.callbacks import Callback
from perdure.core.cloudevents import CloudEvent
from perdure.core.retry import Retry
from perdure.core.tracing import tracing
from perdure.errors import (
    ActionError,
    ActionFailed,
    ChildFailed,
    CircuitOpen,
    Contention,
    DefinitionConflict,
    DefinitionInvalid,
    DefinitionNotFound,
    EventConflict,
    EventNotFound,
    EventRefused,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionExists,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionStuck,
    ExpressionError,
    External,
    Forbidden,
    FormInvalid,
    InvalidValue,
    LimitReached,
    LockLost,
    LockTaken,
    MigrationRefused,
    Nondeterminism,
    PerdureError,
    Permanent,
    RetryRefused,
    SecretExposed,
    SecretNotFound,
    StoreError,
    TaskExpired,
    Transient,
)
from perdure.flows.action import Action, action
from perdure.flows.bound import Problem
from perdure.flows.document import Document
from perdure.flows.event import Received, event
from perdure.flows.graph import Graph
from perdure.flows.listening import Listen, On
from perdure.flows.machine import Ask, Do, Machine, State, To
from perdure.flows.person import Escalate, Role, person, role
from perdure.flows.secret import Secret, secret
from perdure.flows.workflow import Workflow, workflow
from perdure.runtime.app import Page, Perdure
from perdure.runtime.callers.routing import Routed
from perdure.runtime.callers.sending import NewEvent
from perdure.runtime.callers.whereabouts import EventStatus
from perdure.runtime.definitions.definitions import Definitions
from perdure.runtime.definitions.published import Definition
from perdure.runtime.managing.audit import Act
from perdure.runtime.managing.bulk import Bulk, Operation
from perdure.runtime.managing.dead import Dead, DeadPage, Handled
from perdure.runtime.managing.locks import Lock
from perdure.runtime.managing.scheduled import Fired, Schedule
from perdure.runtime.managing.schedules import Schedules
from perdure.runtime.managing.tasks import Task, TaskPage, Tasks
from perdure.runtime.run import Run
from perdure.runtime.settings import Settings
from perdure.runtime.web.callbacks import webhook_sink
from perdure.runtime.web.hook_log import HookRoute, HookSend, HookStart

if TYPE_CHECKING:
    from perdure.client import Client as Client
    from perdure.runtime.sealing.keyring import DirectoryRing as DirectoryRing

__version__ = "0.1.0"
__all__ = [
    "Act",
    "Action",
    "ActionError",
    "ActionFailed",
    "Ask",
    "Breaker",
    "Bulk",
    "Callback",
    "ChildFailed",
    "CircuitOpen",
    "CloudEvent",
    "Contention",
    "Dead",
    "DeadPage",
    "Definition",
    "DefinitionConflict",
    "DefinitionInvalid",
    "DefinitionNotFound",
    "Definitions",
    "Do",
    "Document",
    "Escalate",
    "EventConflict",
    "EventNotFound",
    "EventRefused",
    "EventStatus",
    "ExecutionCancelled",
    "ExecutionEnded",
    "ExecutionExists",
    "ExecutionFailed",
    "ExecutionNotFound",
    "ExecutionStuck",
    "ExpressionError",
    "External",
    "Fired",
    "Forbidden",
    "FormInvalid",
    "Graph",
    "Handled",
    "HookRoute",
    "HookSend",
    "HookStart",
    "InvalidValue",
    "LimitReached",
    "Listen",
    "Lock",
    "LockLost",
    "LockTaken",
    "Machine",
    "MigrationRefused",
    "NewEvent",
    "Nondeterminism",
    "On",
    "Operation",
    "Page",
    "Perdure",
    "PerdureError",
    "Permanent",
    "Problem",
    "Received",
    "Retry",
    "RetryRefused",
    "Role",
    "Routed",
    "Run",
    "Schedule",
    "Schedules",
    "Secret",
    "SecretExposed",
    "SecretNotFound",
    "Settings",
    "State",
    "StoreError",
    "Task",
    "TaskExpired",
    "TaskPage",
    "Tasks",
    "To",
    "Transient",
    "Workflow",
    "action",
    "event",
    "person",
    "role",
    "secret",
    "tracing",
    "webhook_sink",
    "workflow",
]


#: What needs packages that nothing else needs: the module that has it, and the extra that brings them. It is not in
#: `__all__`, because `from perdure import *` works without any extra.
_EXTRAS = {
    "Client": ("perdure.client", "client"),
    "DirectoryRing": ("perdure.runtime.sealing.keyring", "encryption"),
}


def __getattr__(name: str) -> Any:
    """What needs a further package is imported only for those who ask for it."""
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _EXTRAS[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs a further package: pip install 'perdure[{extra}]' ({error})") from error
