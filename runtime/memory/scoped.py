"""Whose part of a memory a session sees: its user's, its own, or one that all share.

    memory = EpisodicStore()                                    # Sessions of one user share what they remember.
    shared = SemanticStore(scope="agent")                       # All sessions see it.
    tenants = GraphStore(scope=lambda context: context.metadata["tenant"])
    await memory.of(user="alice").add_episode("agent", "Alice prefers tea")

Read `refold.memory.stream_object` first. Each part is a stream of its own, so that what one holds cannot come into
another one, and a question costs what that one holds. The object itself stands for the agent's part: what all sessions
share where its scope is `"agent"`, and what logs of before scopes hold. The rule: what is asked for a session, by
recall or by the tools of `memory_tools`, is asked of `within(context)`.
"""

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Literal, Self, TypeAlias, cast
from weakref import WeakValueDictionary

from refold.actors.calls.context import SessionContext
from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.reply import ActorFuture
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.errors import AgentMemoryError, ConfigError, quoted
from refold.events.core.pure_core import E
from refold.events.kinds.scopes import PartKind, part_name, require_whole
from refold.memory.stream_object import C, R, S, StreamObject

Scope: TypeAlias = Literal["user", "session", "agent"] | Callable[[SessionContext], str]
"""Whose memories a session sees: those of its user, or its own where it has no user; its own; those of all sessions;
or those of a scope that a plain function names, such as a tenant's."""

PARTS_KEPT: Final = 1_000
"""So many parts of a memory are kept ready in a runtime, those that were used last, beside those that are held."""

log = logging.getLogger("refold.memory")


class ScopedObject(StreamObject[S, C, E]):
    """Base of memories, of which each session sees its part."""

    is_everywhere = True

    def __init__(self, name: str, scope: Scope, clock: Clock | None) -> None:
        super().__init__(name, clock)
        require_whole(name)
        if not (callable(scope) or scope in ("user", "session", "agent")):
            raise ConfigError(
                f'the scope of {self!r} must be "user", "session", "agent" or a function, not {quoted(scope, 60)}'
            )
        self.scope: Scope = scope
        self._is_part = False
        self._parts: WeakValueDictionary[str, Self] = WeakValueDictionary()
        self._ready: OrderedDict[str, Self] = OrderedDict()
        """The parts that stay although no caller holds them."""
        self._settled: ActorRef | None = None
        """The actor that has the settings of the part."""

    def settings(self) -> Sequence[C]:
        """Return the commands that make a part's settings those of the object; what is so already is not recorded."""
        return ()

    def held(self, state: S) -> int:
        """Return how many things there are in a state."""
        raise NotImplementedError

    def of(self, *, user: str | None = None, session: str | None = None, scope: str | None = None) -> Self:
        """Return the part of one user, one session, or one scope that a function names.

        Raises:
            ConfigError: not exactly one is named, or it cannot be a name; or this is a part itself.
        """
        self._require_present()
        named = {"user": user, "session": session, "scope": scope}
        given = [(kind, owner) for kind, owner in named.items() if owner is not None]
        if len(given) != 1 or self._is_part:
            raise ConfigError(f"a part of {self!r} is that of one user, of one session or of one scope: of(user=…)")
        return self._part(cast("PartKind", given[0][0]), given[0][1])

    def within(self, context: SessionContext, /) -> Self:
        """Return the part that a session sees, such as `memory.within(context.session_context)` in a tool.

        Raises:
            AgentMemoryError: the scope is a function, and gave no text that can name one.
            Exception: what that function raised.
        """
        scope = self.scope
        if self._is_part or self._past or scope == "agent":
            return self
        if not isinstance(scope, str):
            owner = scope(context)
            try:
                return self._part("scope", owner)
            except ConfigError as error:
                raise AgentMemoryError(
                    f"the scope of {self!r} gave {quoted(owner, 60)} for {context.session!r}: {error}"
                ) from None
        if scope == "user" and context.user is not None:
            return self._part("user", context.user)
        return self._part("session", context.conversation)

    def _part(self, kind: PartKind, owner: str) -> Self:
        name = part_name(self.name, kind, owner)
        with self._before_lock:
            part = self._parts.get(name)
            if part is None:
                part = self._parts[name] = self._made_part(name)
            self._ready[name] = part
            self._ready.move_to_end(name)
            if self._ref is not None and len(self._ready) > PARTS_KEPT:
                oldest = next(iter(self._ready.values()))
                if oldest._given:  # The next runtime may have another log.
                    self._ready.move_to_end(oldest.name)
                elif oldest._ref is not None:
                    self._ready.popitem(last=False)
            return part

    def _made_part(self, name: str) -> Self:
        part = copy.copy(self)
        super(ScopedObject, part).__init__(name, self._clock)
        part._forget_derived()
        part._is_part, part._settled = True, None
        part._parts, part._ready = WeakValueDictionary(), OrderedDict()
        part._ref = self._ref.system.ref(part.stream) if self._ref is not None else None
        return part

    async def attach(self, host: Host) -> None:
        await super().attach(host)
        if self._is_part:
            return
        for part in self._all_parts():
            with part._before_lock:  # Other threads may be giving.
                if not part._given and self._ref is not None:
                    part._ref = self._ref.system.ref(part.stream)
                    continue
            await part.attach(host)
        unseen = await self.read(self.held) if self.scope != "agent" else 0
        if unseen:
            log.warning(
                "%s has items that belong to no user and no session, so that no session sees them (there are %d); a "
                'store with scope="agent" shares them with all',
                self.stream,
                unseen,
            )

    def look_through(self, system: ActorSystem) -> None:
        """Be what another process has on its log, with all parts; actors of `system` stand for them.

        What was done before stays for the time when this process has the log.
        """
        for each in (self, *self._all_parts()):
            with each._before_lock:
                each._ref = system.ref(each.stream)

    def begin_anew(self) -> None:
        super().begin_anew()
        for part in self._all_parts():
            part.begin_anew()

    def _all_parts(self) -> list[Self]:
        with self._before_lock:  # Other threads may ask for one.
            return list(self._parts.values())

    def perform(self, command: C) -> ActorFuture[Performed]:
        """As `StreamObject.perform`; the first command to a part brings its settings along."""
        with self._before_runtime() as ref:
            settings = self._unsettled(ref)
        if ref is None or not settings:
            return super().perform(command)

        def last(performed: list[Performed]) -> Performed:
            self._settled = ref
            return performed[-1]

        packed, payloads = self.packed((*settings, command))
        asked: ActorFuture[list[Performed]] = ref.ask(Envelope(tuple(packed), payloads), block=False)
        return asked.map(last)

    def perform_each(
        self, commands: Sequence[C], called: str, outcome: Callable[[C, Performed], R]
    ) -> ActorFuture[list[R]]:
        """As `StreamObject.perform_each`; settings of a part go before them."""
        with self._before_runtime() as ref:
            settings = self._unsettled(ref)
        if ref is not None and settings:
            ref.ask(Envelope(tuple(settings)), block=False)
        return super().perform_each(commands, called, outcome)

    def _unsettled(self, ref: ActorRef | None) -> Sequence[C]:
        return self.settings() if self._is_part and ref is not None and self._settled is not ref else ()
