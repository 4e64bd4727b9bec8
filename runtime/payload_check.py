"""Are the payloads there that events refer to, and are they what their names say?"""

from refold.events.configuration import payload_hash
from refold.events.event import Event
from refold.events.ids import PayloadHash
from refold.events.payloads import referenced_payloads
from refold.events.records import StoredEvent
from refold.stores.event_store import EventStore
from refold.stream_problems import Problems


class PayloadCheck:
    """Checks each payload once, where it is first referred to.

    Args:
        store: where payloads are.
        problems: takes what is found.
    """

    def __init__(self, store: EventStore, problems: Problems) -> None:
        self._store = store
        self._problems = problems
        self._seen: set[PayloadHash] = set()

    @property
    def count(self) -> int:
        """How many different payloads were referred to so far."""
        return len(self._seen)

    async def add(self, event: Event, stored: StoredEvent) -> None:
        """Check the payloads that an event is the first to refer to; one at a time, since each may be large."""
        for name in referenced_payloads(event):
            if name in self._seen:
                continue
            self._seen.add(name)
            payload = (await self._store.read_payloads((name,))).get(name)
            if payload is None:
                self._problems.add_at(stored, "payload", f"the payload {name} is missing")
            elif payload_hash(payload) != name:
                message = (
                    f"the payload {name} is not what was stored: its {len(payload):,} bytes hash to something else"
                )
                self._problems.add_at(stored, "payload", message)
