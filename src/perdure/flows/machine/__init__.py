"""State machines: `machine` is what authors make, `document` the same as plain data, `run` what happens to both."""

from perdure.flows.machine.document import actions, build, calls, check
from perdure.flows.machine.machine import Machine
from perdure.flows.machine.model import Ask, Do, Event, State, To

__all__ = ["Ask", "Do", "Event", "Machine", "State", "To", "actions", "build", "calls", "check"]
