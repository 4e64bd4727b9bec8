"""Replay and check of kinds of actors that are the application's own, in Python and by command."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from refold.actors import EventSourcedSystem
from refold.agents.loading import load_kinds
from refold.commands.cli import app
from refold.events import CommandRejected, Effect, Event, KeyedCommand, KeyedEvent, PureCore, State, WaitUntil
from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import ConfigError, DivergenceError, LogFormatError
from refold.inspection.check import NotDecoded, check_log
from refold.inspection.kinds import StreamKind
from refold.replay import Level, NotReplayed, replay, replay_sync, state_at
from refold.stores import SQLiteStore
from tests.runtime.conftest import LogBuilder


class Pay(KeyedCommand, frozen=True, kw_only=True):
    amount: int


class Paid(KeyedEvent, frozen=True, kw_only=True, tag="till.paid.v1"):
    amount: int


class Emptied(Event, frozen=True, kw_only=True, tag="till.emptied.v1"):
    amount: int


class Till(State):
    amount: int = 0


class TillCore(PureCore[Till, Pay, Paid | Emptied]):
    """A till that is emptied as soon as it holds more than 100."""

    def admit(self, state: Till, command: Pay) -> Paid:
        if command.amount < 0:
            raise CommandRejected("a till takes money")
        return Paid(amount=command.amount)

    def evolve(self, state: Till, event: Paid | Emptied) -> Till:
        state.amount += event.amount if isinstance(event, Paid) else -event.amount
        return state

    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount)] if isinstance(event, Paid) and state.amount > 100 else ()

    def pending(self, state: Till) -> list[Effect]:
        return [WaitUntil(key=f"count:{state.amount}", due_at=2**60)] if state.amount > 50 else []


class LaterEmptied(TillCore):
    """The same with one line changed."""

    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount)] if isinstance(event, Paid) and state.amount > 110 else ()


class LessEmptied(TillCore):
    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount - 1)] if super().react(state, event) else ()


class WaitsLess(TillCore):
    def pending(self, state: Till) -> list[Effect]:
        return []


class Fails(TillCore):
    def evolve(self, state: Till, event: Paid | Emptied) -> Till:
        if isinstance(event, Emptied):
            raise KeyError("emptied")
        return super().evolve(state, event)


class GrownEvents(PureCore[Till, Pay, Paid]):
    """Knows one of the two events."""

    def admit(self, state: Till, command: Pay) -> Paid:
        return Paid(amount=1)

    def evolve(self, state: Till, event: Paid) -> Till:
        return state


NO_CORE = "nothing"


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    """Two tills and a session: till/a has Paid 60, Paid 50, Emptied 110 and Paid 5."""
    path = tmp_path / "tills.db"
    async with EventSourcedSystem(path) as system:
        tills = await system.host("till", TillCore)
        for amount in (60, 50, 5):
            await tills.ask("a", Pay(amount=amount, key=f"key {amount}"))
        await tills.ask("b", Pay(amount=1))
    async with await SQLiteStore.open(path) as store:
        await LogBuilder(store).weather_session("alice")
    return path


async def test_a_log_with_kinds_of_ones_own_replays_where_their_cores_are_given(log: Path) -> None:
    levels: tuple[Level, ...] = ("fold", "core")
    for level in levels:
        report = await replay(log, level=level, kinds={"till": TillCore})
        report.raise_for_divergence()
        assert (report.streams, report.batches, report.not_replayed) == (3, 10, ())
    assert (await replay(log)).not_replayed == (NotReplayed(kind="till", streams=2),)


@pytest.mark.parametrize(
    ("core", "version", "words"),
    [
        (LaterEmptied, 3, "till/a@3: missing: consequences[0]"),
        (LessEmptied, 3, "till/a@3: consequences[0].amount: 110 -> 109"),
        (WaitsLess, 1, 'till/a@1: pending[0]: "count:60" -> (nothing)'),
        (Fails, 2, "till/a@2: failure: Fails.evolve fails on the Emptied of version 3: KeyError: 'emptied' (test_own"),
    ],
)
async def test_a_changed_line_of_a_core_is_found_where_it_first_matters(
    log: Path, core: type[TillCore], version: int, words: str
) -> None:
    report = await replay(log, kinds={"till": core})
    assert report.divergence is not None
    assert (report.divergence.stream, report.divergence.version) == ("till/a", version)
    assert str(report.divergence).startswith(words)
    assert report.diverged == 1
    with pytest.raises(DivergenceError, match="till/a"):
        report.raise_for_divergence()


async def test_one_stream_alone_is_replayed(log: Path) -> None:
    report = await replay(log, stream="till/b", kinds={"till": TillCore})
    assert (report.streams, report.events) == (1, 1)
    with pytest.raises(ConfigError, match="did you mean 'till/"):
        await replay(log, stream="till/c", kinds={"till": TillCore})
    with pytest.raises(ConfigError, match="not both"):
        await replay(log, stream="till/b", session="alice")


def test_a_kind_with_a_core_and_a_codec_of_its_own_can_be_given_too(log: Path) -> None:
    checked = CheckedCore(TillCore)
    report = replay_sync(log, stream="till/a", kinds={"till": StreamKind(checked, checked.codec)})
    assert (report.divergence, report.events) == (None, 4)


@pytest.mark.parametrize("kind", ["session", "", "till/a"])
async def test_a_name_that_cannot_be_a_kind_of_ones_own_is_refused(log: Path, kind: str) -> None:
    for look in (replay, check_log):
        with pytest.raises(ConfigError, match="kind"):
            await look(log, kinds={kind: TillCore})


@pytest.mark.parametrize(("version", "amount"), [(0, 0), (1, 60), (2, 110), (3, 0), (4, 5), (None, 5)])
async def test_the_state_after_any_version_can_be_seen(log: Path, version: int | None, amount: int) -> None:
    state = await state_at(log, "till/a", TillCore, version=version)
    assert (state.amount, state.version) == (amount, 4 if version is None else version)


async def test_a_state_that_is_not_there_is_an_error(log: Path) -> None:
    with pytest.raises(ConfigError, match="has the versions 1 to 4, and not 5"):
        await state_at(log, "till/a", TillCore, version=5)
    with pytest.raises(ConfigError, match="no stream 'till/nobody'"):
        await state_at(log, "till/nobody", TillCore)
    with pytest.raises(LogFormatError, match=r"version 3 contradicts the events before it: Fails\.evolve"):
        await state_at(log, "till/a", Fails)


async def test_check_decodes_and_folds_kinds_whose_cores_are_given(log: Path) -> None:
    assert (await check_log(log)).not_decoded == (NotDecoded(kind="till", streams=2),)
    report = await check_log(log, kinds={"till": TillCore})
    assert (report.sound, report.not_decoded) == (True, ())
    problems = (await check_log(log, kinds={"till": Fails})).problems
    assert [(problem.kind, problem.stream, problem.version) for problem in problems] == [("invariant", "till/a", 3)]
    assert "INV6: it cannot be folded: Fails.evolve fails on the Emptied" in problems[0].message
    problems = (await check_log(log, kinds={"till": GrownEvents})).problems
    assert [(problem.kind, problem.version) for problem in problems] == [("event", 3)]
    assert problems[0].message.endswith(
        "has the type 'till.emptied.v1', which the core GrownEvents does not know; keep the class of an event that was "
        "removed, and give one that was renamed its old tag or an upcaster"
    )


class AdmitsNothing(TillCore):
    def admit(self, state: Till, command: Pay) -> Paid:
        raise CommandRejected("closed")


async def test_what_admit_decided_is_recorded_and_not_decided_again(log: Path) -> None:
    (await replay(log, kinds={"till": AdmitsNothing})).raise_for_divergence()


async def test_a_kind_that_no_stream_has_is_in_the_report(log: Path) -> None:
    cores = {"till": TillCore, "tlil": TillCore, "book": TillCore}
    for report in (await replay(log, kinds=cores), await check_log(log, kinds=cores)):
        assert report.kinds_without_streams == ("book", "tlil")
    assert (await replay(log, stream="till/b", kinds=cores)).kinds_without_streams == ("book", "tlil")
    for report in (await replay(log, kinds={"till": TillCore}), await check_log(log)):
        assert report.kinds_without_streams == ()


# By command

KIND = f"till={__name__}:TillCore"


def refold(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, done.output


def test_the_commands_replay_and_check_what_they_are_given_the_core_of(log: Path) -> None:
    assert refold("replay", log, "--kind", KIND) == (
        0,
        "level core: no divergence: 3 streams, 10 batches, 16 events decided again and compared\n",
    )
    assert refold("check", log, "--kind", KIND) == (0, "sound: 3 streams, 10 batches, 16 events, 2 payloads checked\n")
    assert "not replayed: kind 'till' (2 streams)" in refold("replay", log)[1]


def test_the_command_says_where_todays_core_decides_otherwise(log: Path) -> None:
    code, output = refold("replay", log, "--kind", f"till={__name__}:LaterEmptied", "--json")
    document = json.loads(output)
    assert (code, document["diverged"], document["divergences"][0]["version"]) == (1, 1, 3)
    assert refold("check", log, "--kind", f"till={__name__}:Fails")[0] == 1


@pytest.mark.parametrize("command", ["check", "replay"])
def test_the_commands_refuse_a_kind_that_no_stream_has(log: Path, command: str) -> None:
    given = ["--kind", KIND, "--kind"]
    code, output = refold(command, log, *given, f"tlil={__name__}:TillCore", "--json")
    assert (code, output) == (2, f"refold: no stream of {log} is of the kind 'tlil'; did you mean 'till'?\n")
    code, output = refold(command, log, *given, f"book={__name__}:TillCore")
    assert (code, output) == (2, f"refold: no stream of {log} is of the kind 'book'; its kinds: session, till\n")


def test_a_damaged_list_of_streams_is_for_the_check_to_report(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"no log at all, and longer than the header of a file of SQLite")
    assert refold("check", tmp_path / "log.db", "--kind", KIND) == refold("check", tmp_path / "log.db")


def test_the_command_shows_a_state(log: Path) -> None:
    code, output = refold("replay", log, "--kind", KIND, "--stream", "till/a", "--at", 2, "--json")
    state = json.loads(output)["state"]
    assert (code, state["amount"], state["version"], list(state["keys"])) == (0, 110, 2, ["key 60", "key 50"])
    code, output = refold("replay", log, "--kind", KIND, "--stream", "till/a", "--at", 2)
    assert output.startswith("till/a after version 2:\n  {\n")
    assert refold("replay", log, "--stream", "till/a", "--at", 2)[0] == 2
    assert refold("replay", log, "--kind", KIND, "--at", 2)[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["till"], "a kind is given as kind=module:attribute, such as book=app.books:OrderBook, not 'till'"),
        (["till=nowhere"], "a core is named module:attribute, such as app.books:OrderBook, and not 'nowhere'"),
        (["till=no.such:Core"], "there is no module 'no'"),
        ([f"till={__name__}:Tills"], "has no 'Tills'; its cores are .*, TillCore, WaitsLess"),
        ([f"till={__name__}:NO_CORE"], "NO_CORE is of type str and no core; derive it from refold.events.PureCore"),
        ([f"till={__name__}:Till"], "Till is a class, Till, and no core"),
        ([KIND, KIND], "the kind 'till' is given twice"),
    ],
)
def test_a_kind_that_names_no_core_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_kinds(words)


def test_kinds_are_loaded_by_name() -> None:
    loaded: Any = load_kinds([KIND])["till"]
    assert loaded.__name__ == "TillCore"
    assert msgspec.structs.fields(CheckedCore(loaded).command_types[0])
