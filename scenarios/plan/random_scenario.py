"""Scenarios drawn from a seed: for sweeps over many, where hypothesis would spend its time on choices.

`refold.scenarios.strategies` draws the same kinds of scenarios for hypothesis, which shrinks those that fail.
"""

import random
from typing import get_args

from refold.events.core.errors import ConfigError, quoted
from refold.scenarios import faults
from refold.scenarios.faults import DRAWN_MAX, AnyFault, check_whole
from refold.scenarios.plan.scenario import (
    Abandon,
    AnyAct,
    Cancel,
    Clear,
    Post,
    PostWord,
    Say,
    Scenario,
    StoreName,
    Watch,
    WireName,
)

BUSY_S = 40.0
"""Within so many virtual seconds everything is said and most faults happen."""


def drawn_scenario(
    seed: int,
    *,
    sessions: int = 3,
    acts: int = 8,
    faults_max: int = 6,
    store: StoreName = "memory",
    wire: WireName = "none",
    snapshots: bool = False,
) -> Scenario:
    """Return the scenario of a seed, always the same.

    Args:
        seed: any integer.
        sessions: how many sessions are spoken to, >= 1.
        acts: how many acts there are, >= 1; sometimes a session is watched or cleared, too.
        faults_max: most faults of those that any world knows, >= 0; a cancel, messages that come twice or late, what
            happens seldom, and what goes wrong with a network or a disk where there is one, come on top, up to about
            half as many of each.
        store: where the log is.
        wire: how the model is reached.
        snapshots: whether states are kept after few events, some of them badly.

    Raises:
        ConfigError: there can be no such scenario; each number is at most 10,000.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"a seed is a whole number, and not {quoted(seed)}")
    for name, value, least in (("sessions", sessions, 1), ("acts", acts, 1), ("faults_max", faults_max, 0)):
        check_whole(name, value, least=least, most=DRAWN_MAX)
    chance = random.Random(f"scenario {seed}")
    said = tuple(_act(chance, f"s{chance.randrange(sessions)}") for _ in range(acts))
    planned = [_fault(chance) for _ in range(chance.randint(0, faults_max))]
    messages, network = random.Random(f"messages {seed}"), random.Random(f"network {seed}")
    planned += [_message_fault(messages) for _ in range(messages.randint(0, faults_max // 2))]
    cancels = random.Random(f"cancels {seed}")
    if faults_max and cancels.random() < 0.5:
        planned.append(faults.CancelAtStep(nth=cancels.randint(1, 1_500), session=f"s{cancels.randrange(sessions)}"))
    seldom = random.Random(f"seldom {seed}")
    if seldom.random() < 0.2:
        said = (*said, _watch(seldom, f"s{seldom.randrange(sessions)}"))
    if seldom.random() < 0.2:
        said = (*said, Clear(session=f"s{seldom.randrange(sessions)}", at_s=round(seldom.uniform(0, 3 * BUSY_S), 2)))
    posts = random.Random(f"posts {seed}")
    if posts.random() < 0.3:
        asked = [_post(posts, f"s{posts.randrange(sessions)}") for _ in range(posts.randint(1, 4))]
        said = (*said, *asked)
    if faults_max and posts.random() < 0.2:
        planned.append(faults.ActorFails(nth=posts.randint(1, 30)))
    if faults_max and seldom.random() < 0.4:
        planned.append(_rare_fault(seldom))
    if wire != "none":
        planned += [_network_fault(network) for _ in range(network.randint(0, faults_max // 2 + 1))]
        if faults_max and network.random() < 0.15:
            planned.append(faults.CallsShareIndex(nth=network.randint(1, 20)))
    if store != "memory":
        disk = random.Random(f"disk {seed}")
        planned += [_disk_fault(disk) for _ in range(min(faults_max, disk.randint(1, 4)))]
    reach = random.Random(f"reach {seed}")
    if faults_max and reach.random() < 0.15:
        planned.append(_out_of_reach(reach, f"s{reach.randrange(sessions)}", store))
    every: int | None = None
    if snapshots:
        snapshot = random.Random(f"snapshots {seed}")
        every = snapshot.choice((1, 2, 5, 20))
        ways = get_args(faults.SnapshotFate)
        planned += [
            faults.SnapshotGoesWrong(nth=snapshot.randint(1, 30), how=snapshot.choice(ways))
            for _ in range(min(faults_max, snapshot.randint(0, 4)))
        ]
    return Scenario(acts=said, faults=tuple(planned), seed=seed, store=store, wire=wire, snapshot_every=every)


def _act(chance: random.Random, session: str) -> AnyAct:
    at_s = round(chance.uniform(0, BUSY_S), 2)
    kind = chance.random()
    if kind < 0.2:
        return Cancel(session=session, at_s=at_s)
    if kind < 0.3:
        return Abandon(session=session, at_s=at_s, after_s=round(chance.uniform(0.1, 10), 2))
    return Say(session=session, at_s=at_s, text=chance.choice(("hello", "go on", "pay 3", "look again")))


def _watch(chance: random.Random, session: str) -> AnyAct:
    return Watch(
        session=session,
        at_s=round(chance.uniform(0, BUSY_S), 2),
        pause_s=chance.choice((0.0, 0.5, 5.0)),
        for_s=chance.choice((1.0, 60.0, 500.0)),
        capacity=chance.choice((1, 8, 100)),
    )


def _post(chance: random.Random, session: str) -> AnyAct:
    words: tuple[PostWord, ...] = ("send", "send", "cancel", "allow", "deny", "deny", "set_aside")
    asks = chance.choice(words)
    return Post(session=session, at_s=round(chance.uniform(0, BUSY_S), 2), asks=asks)


def _out_of_reach(chance: random.Random, session: str, store: StoreName) -> AnyFault:
    at_s, for_s = round(chance.uniform(0, BUSY_S), 2), chance.choice((0.3, 2.0, 20.0))
    kinds = (
        lambda: faults.LogIsGone(
            at_s=at_s, for_s=for_s, committed=chance.random() < 0.5, reads_only=chance.random() < 0.2
        ),
        lambda: faults.SessionFails(at_s=at_s, session=session),
        lambda: faults.DiskFails(at_s=at_s, for_s=for_s, syncs_only=chance.random() < 0.5),
    )
    return chance.choice(kinds if store == "sqlite" else kinds[:2])()


def _rare_fault(chance: random.Random) -> AnyFault:
    tool, moment = chance.randint(1, 15), round(chance.uniform(0, BUSY_S), 2)
    return chance.choice(
        (
            lambda: faults.SecondRuntime(at_s=moment),
            lambda: faults.SecondRuntime(at_s=moment),
            lambda: faults.ProviderBrownOut(
                at_s=moment,
                for_s=chance.choice((5.0, 60.0, 300.0)),
                share=chance.choice((0.5, 1.0)),
                kind=chance.choice(("rate_limit", "overloaded", "server")),
            ),
            lambda: faults.DiskIsFull(at_s=moment, for_s=chance.choice((1.0, 20.0, 200.0))),
            lambda: faults.ToolReturnsHuge(nth=tool, characters=chance.choice((70_000, 300_000))),
            lambda: faults.ToolReturnsOddText(nth=tool),
        )
    )()


def _fault(chance: random.Random) -> AnyFault:
    model, tool, append = chance.randint(1, 20), chance.randint(1, 15), chance.randint(1, 60)
    moment = round(chance.uniform(0, BUSY_S), 2)
    return chance.choice(
        (
            lambda: faults.ProviderRefuses(
                nth=model,
                kind=chance.choice(("rate_limit", "overloaded", "server", "connection", "timeout", "auth")),
                retryable=chance.random() < 0.8,
                retry_after_s=chance.choice((None, None, 0.0, 7.5)),
            ),
            lambda: faults.ProviderDrops(nth=model),
            lambda: faults.ProviderStalls(nth=model, seconds=chance.choice((5.0, 100.0, 900.0))),
            lambda: faults.ProviderBabbles(nth=model),
            lambda: faults.ToolRaises(nth=tool),
            lambda: faults.ToolIsSlow(nth=tool, seconds=chance.choice((10.0, 100.0, 300.0))),
            lambda: faults.ToolHangs(nth=tool),
            lambda: faults.ToolReturnsGarbage(nth=tool),
            lambda: faults.AppendFails(
                nth=append, committed=chance.random() < 0.5, appends=chance.choice((1, 1, 2, 10))
            ),
            lambda: faults.AppendIsSlow(nth=append, seconds=chance.choice((0.5, 5.0, 20.0))),
            lambda: faults.ReadFails(nth=chance.randint(1, 60)),
            lambda: faults.CrashAtAppend(nth=append, committed=chance.random() < 0.5),
            lambda: faults.CrashAtAppend(nth=append, committed=chance.random() < 0.5),
            lambda: faults.CrashAtStep(nth=chance.randint(1, 1_500)),
            lambda: faults.CrashInTool(nth=tool),
            lambda: faults.Crash(at_s=moment),
            lambda: faults.Close(at_s=moment),
            lambda: faults.ClockJumps(at_s=moment, seconds=chance.choice((-86_400.0, -5.0, 5.0, 86_400.0))),
        )
    )()


def _message_fault(chance: random.Random) -> AnyFault:
    reply = chance.randint(1, 40)
    return chance.choice(
        (
            lambda: faults.DuplicateReply(nth=reply, after_s=chance.choice((0.0, 0.5, 10.0, 120.0))),
            lambda: faults.LateReply(nth=reply, seconds=chance.choice((2.0, 10.0, 60.0, 300.0))),
            lambda: faults.DuplicateInput(nth=chance.randint(1, 8), after_s=chance.choice((0.0, 0.3, 20.0, 400.0))),
        )
    )()


def _network_fault(chance: random.Random) -> AnyFault:
    connection, request, chunk = chance.randint(1, 8), chance.randint(1, 20), chance.randint(1, 300)
    kinds = (
        lambda: faults.HostRefuses(nth=connection),
        lambda: faults.HostIsSilent(nth=connection),
        lambda: faults.HostIsFull(nth=request, retry_after_s=chance.choice((None, 0, 5, 60))),
        lambda: faults.HostFails(
            nth=request, status=chance.choice((500, 502, 503, 504, 529)), page=chance.random() < 0.3
        ),
        lambda: faults.ResponseStalls(
            nth=request, seconds=chance.choice((30.0, 400.0, 4_000.0)), begun=chance.random() < 0.5
        ),
        lambda: faults.ResponseBreaks(nth=request, reset=chance.random() < 0.5, begun=chance.random() < 0.7),
        lambda: faults.ResponseDrips(nth=request),
        lambda: faults.ResponseIsNoText(nth=request),
        lambda: faults.ResponseIsNoJson(nth=request),
        lambda: faults.ResponseHasNoEnd(nth=request, marker_only=chance.random() < 0.3),
        lambda: faults.ResponseIsHuge(nth=request),
        lambda: faults.ArgumentsAreCut(nth=request),
        lambda: faults.CallsShareId(nth=request),
        lambda: faults.ChunkIsLate(nth=chunk, seconds=chance.choice((1.0, 60.0, 400.0))),
        lambda: faults.ChunkIsLost(nth=chunk),
        lambda: faults.NetworkSplit(
            at_s=round(chance.uniform(0, BUSY_S), 2), seconds=chance.choice((1.0, 20.0, 100.0, 500.0))
        ),
    )
    return chance.choice(kinds)()


def _disk_fault(chance: random.Random) -> AnyFault:
    nth = chance.randint(1, 600)
    if chance.random() < 0.7:
        return faults.PowerCut(nth=nth, damage=chance.choice(get_args(faults.Damage)))
    return faults.DiskError(nth=nth, kind=chance.choice(("EIO", "ENOSPC")), operations=chance.choice((1, 1, 3, 30)))
