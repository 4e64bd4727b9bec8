"""Scenarios that are aimed at what drawn ones seldom meet: few acts, and the faults that hit only together.

Each aim is drawn from a seed as well: when and how often, so that a fault that moves is still met.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from refold.scenarios import Answer, Call, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.scenario import Abandon, AnyAct, Cancel, Clear, Post, Say, Scenario

Aim: TypeAlias = Callable[[random.Random], Scenario]


def aimed_scenario(seed: int, aims: Sequence[Aim]) -> Scenario:
    """Return the scenario of a seed: the aims take turns."""
    number, place = divmod(seed, len(aims))
    return aims[place](random.Random(f"aim {place} {number}"))


def _says(chance: random.Random, count: int, *, once: bool = False, within_s: float = 5.0) -> tuple[Say, ...]:
    """Return what is said in sessions of its own each."""
    moments = [round(chance.uniform(0, within_s), 2) for _ in range(count)]
    return tuple(Say(session=f"s{number}", at_s=at_s, insists=not once) for number, at_s in enumerate(moments))


def _calls(*tools: str) -> tuple[Answer, ...]:
    given: dict[str, dict[str, object]] = {
        "look": {"city": "a"},
        "pay": {"amount": 3},
        "book": {"days": 2},
        "write": {"text": "b"},
    }
    return (Answer(calls=tuple(Call(name, given[name]) for name in tools)),)


def _log_fails_on_who_asks_once(chance: random.Random) -> Scenario:
    """An append fails and is in the log, the reads behind it fail too, and no client asks again."""
    first = chance.randint(1, 4)
    planned: list[AnyFault] = [
        faults.AppendFails(nth=nth, committed=chance.random() < 0.8) for nth in range(first, first + 8, 2)
    ]
    if chance.random() < 0.7:
        nth = chance.randint(2, 7)
        planned += [faults.ReadFails(nth=number) for number in range(nth, nth + chance.randint(1, 4))]
    return Scenario(acts=_says(chance, 4, once=True), faults=tuple(planned), seed=chance.randrange(1_000))


def _log_is_gone(chance: random.Random) -> Scenario:
    """Neither appends nor reads get through for moments, and actors are made anew meanwhile."""
    acts = (*_says(chance, 3), *(Say(session="s0", at_s=round(chance.uniform(0, 4), 2)) for _ in range(3)))
    moments = sorted(round(chance.uniform(0, 20), 2) for _ in range(4))
    gone = [
        faults.LogIsGone(at_s=at_s, for_s=chance.choice((0.3, 2.0)), committed=chance.random() < 0.7)
        for at_s in moments
    ]
    failing = [
        faults.SessionFails(at_s=round(at_s + chance.uniform(0, 0.3), 2), session=f"s{chance.choice((0, 0, 1, 2))}")
        for at_s in moments[:3]
    ]
    return Scenario(acts=acts, faults=(*gone, *failing), seed=chance.randrange(1_000))


def _log_is_gone_for_who_asks_once(chance: random.Random) -> Scenario:
    """A session is in memory already when its log gets out of reach, and no client asks again."""
    first = _says(chance, 3, within_s=2.0)
    later = tuple(Say(session=f"s{number}", at_s=40.0 + 10 * number, insists=False) for number in range(3))
    gone = tuple(
        faults.LogIsGone(at_s=act.at_s - 0.1, for_s=chance.choice((0.2, 0.4, 3.0)), committed=chance.random() < 0.6)
        for act in later
    )
    return Scenario(acts=(*first, *later), faults=gone, script=(Answer(text="Yes."),), seed=chance.randrange(1_000))


def _log_fails_at_a_start(chance: random.Random) -> Scenario:
    """A process ends in the middle of tools, and some of what the next one reads and writes first fails."""
    crash_s = chance.uniform(4, 9)
    slow = (faults.ToolIsSlow(nth=nth, seconds=100.0) for nth in range(1, 5))
    share = chance.choice((0.3, 0.6))
    failing: tuple[AnyFault, ...] = tuple(
        faults.ReadFails(nth=nth) if number else faults.AppendFails(nth=nth, committed=chance.random() < 0.3)
        for number in range(2)
        for nth in range(4, 14)
        if chance.random() < share
    )
    return Scenario(
        acts=_says(chance, chance.randint(1, 3), once=True, within_s=2.0),
        faults=(faults.Crash(at_s=crash_s), *slow, *failing),
        script=_calls(chance.choice(("pay", "book", "look"))),
        seed=chance.randrange(1_000),
    )


def _payloads_cannot_be_read(chance: random.Random) -> Scenario:
    """Tools bring large results, and they cannot be read when the model is to be shown them."""
    huge = (faults.ToolReturnsHuge(nth=nth, characters=70_000 + nth) for nth in range(1, 5))
    reads = chance.randint(1, 4)
    return Scenario(
        acts=_says(chance, 2),
        faults=(*huge, *(faults.ReadFails(nth=nth) for nth in range(reads, reads + 6))),
        script=_calls("pay") + _calls("write"),
        seed=chance.randrange(1_000),
    )


def _callers_give_up_while_the_log_fails(chance: random.Random) -> Scenario:
    """A caller is gone, the order to cancel is refused by the log, and the model takes its time."""
    gone_s = round(chance.uniform(3, 6), 2)
    stalls = (faults.ProviderStalls(nth=nth, seconds=900.0) for nth in range(1, 4))
    return Scenario(
        acts=(Abandon(session="s0", at_s=1.0, after_s=gone_s), Say(session="s1", at_s=20.0)),
        faults=(*stalls, faults.DiskIsFull(at_s=0.9 + gone_s, for_s=chance.uniform(0.2, 3.0))),
        seed=chance.randrange(1_000),
    )


def _an_actor_fails_within_the_grace(chance: random.Random) -> Scenario:
    """A cancelled body goes on for the time of grace, in which the actor is made anew."""
    at_s = round(chance.uniform(3, 6), 2)
    waits = (Say(session="s0", at_s=2.0),) if chance.random() < 0.5 else ()
    return Scenario(
        acts=(Say(session="s0"), *waits, Cancel(session="s0", at_s=at_s)),
        faults=(
            *(faults.ToolHangs(nth=nth, seconds=60.0) for nth in range(1, 4)),
            faults.SessionFails(at_s=at_s + chance.uniform(0.1, 4.0), session="s0"),
        ),
        script=_calls("book"),
        seed=chance.randrange(1_000),
    )


def _large_inputs_share_a_transaction(chance: random.Random) -> Scenario:
    """Inputs that are kept as payloads come while an append takes long."""
    large = (
        Say(session=f"s{number}", at_s=1.0 + number / 10, text=f"{number} much to say ", times=6_000)
        for number in range(4)
    )
    slow = (faults.AppendIsSlow(nth=nth, seconds=2.0) for nth in range(1, chance.randint(3, 9)))
    return Scenario(acts=tuple(large), faults=tuple(slow), seed=chance.randrange(1_000))


def _all_at_once(chance: random.Random) -> Scenario:
    """Much is asked of one session while an append takes long, some of which is refused."""
    at_s = round(chance.uniform(1, 8), 1)
    acts: list[AnyAct] = [Say(session="s0"), *_says(chance, chance.randint(0, 2))]
    for number in range(chance.randint(3, 7)):
        kind = chance.random()
        moment = round(at_s + 0.6 * number, 1)
        if kind < 0.3:
            acts.append(Clear(session="s0", at_s=moment))
        elif kind < 0.4:
            acts.append(Post(session="s0", at_s=moment, asks="deny"))
        else:
            acts.append(Say(session="s0", at_s=moment, text="go on"))
    slow = [faults.AppendIsSlow(nth=nth, seconds=5.0) for nth in sorted(chance.sample(range(2, 9), 2))]
    return Scenario(acts=tuple(acts), faults=tuple(slow), seed=chance.randrange(1_000))


def _actors_are_let_go_as_messages_come(chance: random.Random) -> Scenario:
    """Messages arrive at the very moment at which a session that rests is let go."""
    acts: list[AnyAct] = [Say(session="s0")]
    for moment in (50, 100, 150):
        acts.append(Cancel(session="s0", at_s=float(moment)))
        acts += [Say(session="s0", at_s=moment + 5.0) for _ in range(chance.randint(1, 4))]
    return Scenario(
        acts=tuple(acts), script=(Answer(text="Yes."),), passivate_after_s=5.0, seed=chance.randrange(1_000)
    )


def _disks_fail_before_the_log_is_taken_over(chance: random.Random) -> Scenario:
    """A write fails, and before the file is opened anew another process has the log."""
    taken_s = round(chance.uniform(5, 12), 2)
    acts = (*_says(chance, 2), Say(session="s2", at_s=taken_s - 0.2), Say(session="s3", at_s=taken_s - 0.1))
    return Scenario(
        acts=acts,
        faults=(faults.DiskFails(at_s=taken_s - 0.25, for_s=0.2), faults.SecondRuntime(at_s=taken_s)),
        store="sqlite",
        seed=chance.randrange(1_000),
    )


def _disks_fail_before_the_power(chance: random.Random) -> Scenario:
    """Writes fail, others succeed behind them, and the power goes."""
    moments = sorted(round(chance.uniform(2, 12), 2) for _ in range(3))
    acts = (*_says(chance, 3), *(Say(session=f"s{chance.randrange(3)}", at_s=at_s) for at_s in moments))
    failing = (faults.DiskFails(at_s=at_s - 0.05, for_s=0.1, syncs_only=True) for at_s in moments)
    cuts = (faults.PowerCut(nth=chance.randint(60, 250), damage="dropped") for _ in range(3))
    return Scenario(acts=acts, faults=(*failing, *cuts), store="sqlite", seed=chance.randrange(1_000))


def _calls_that_look_alike(chance: random.Random) -> Scenario:
    """Servers tell calls apart badly: by one index, or one id."""
    alike = (
        chance.choice((faults.CallsShareIndex, faults.CallsShareIndex, faults.CallsShareId))(nth=nth)
        for nth in range(1, 6)
    )
    return Scenario(acts=_says(chance, 3), faults=tuple(alike), wire="openai", seed=chance.randrange(1_000))


AIMS: dict[str, tuple[Aim, ...]] = {
    "memory": (
        _log_fails_on_who_asks_once,
        _log_is_gone,
        _log_is_gone_for_who_asks_once,
        _log_fails_at_a_start,
        _payloads_cannot_be_read,
        _callers_give_up_while_the_log_fails,
        _an_actor_fails_within_the_grace,
        _large_inputs_share_a_transaction,
        _all_at_once,
        _actors_are_let_go_as_messages_come,
    ),
    "sqlite": (_disks_fail_before_the_log_is_taken_over, _disks_fail_before_the_power),
    "openai": (_calls_that_look_alike,),
}
"""By world."""
