"""One program, several processes, one log: the owner is killed, or stopped, and another process takes the log over."""

import signal
from pathlib import Path

import pytest

from refold.events.session.events import RunResumed
from tests.conformance.processes import BEGINNING, STRICT, command_line, kill, left_in, read_until, started

PROGRAM = (
    BEGINNING
    + """
role = sys.argv[2]

async def answer(request):
    print("asked", flush=True)
    if role == "hangs":
        await asyncio.Event().wait()
    return "Done."

async def main():
    config, provider = AgentConfig(model="m"), ScriptedProvider([answer] * 9)
    async with AgentRuntime(config, provider=provider, log=log, share=True) as runtime:
        print("owner" if runtime.is_owner else "guest", flush=True)
        session = await runtime.session("s")
        if role == "sends":
            result = await session.send("go", key="k")
            print("answered", result.text, runtime.is_owner, flush=True)
            return
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await session.send("late")
        except PersistenceError as error:
            print("refused", type(error).__name__, flush=True)
        os._exit(7)

asyncio.run(main())
"""
)


def worker(log: Path, role: str) -> list[str]:
    return command_line(*STRICT, "-c", PROGRAM, log, role)


def test_a_guest_that_waits_takes_over_from_an_owner_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with started(worker(log, "hangs")) as owner:
        read_until(owner, "owner")
        with started(worker(log, "sends")) as guest:
            read_until(guest, "guest")
            read_until(owner, "asked")
            kill(owner)
            assert read_until(guest, "answered") == "answered Done. True\n"
            said, complaints = guest.communicate(timeout=60)
            assert (said, complaints, guest.returncode) == ("", "", 0)
    left = left_in(log)
    assert (left.inputs, left.ends, left.closed) == (["go"], ["RunCompleted"], True)
    assert [type(event) for event in left.session].count(RunResumed) == 1


@pytest.mark.slow
def test_an_owner_that_was_stopped_keeps_the_log_or_writes_nothing_more(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with started(worker(log, "idles")) as owner:
        read_until(owner, "owner")
        owner.send_signal(signal.SIGSTOP)
        with started(worker(log, "sends")) as guest:
            read_until(guest, "guest")  # The lock is the stopped one's, and silence makes no owner of another process.
            log.with_name(f"{log.name}.lock").unlink()
            assert read_until(guest, "answered") == "answered Done. True\n"
            guest.communicate(timeout=60)
        owner.send_signal(signal.SIGCONT)
        owner.communicate("go on\n", timeout=60)
        assert owner.returncode == 7
    assert left_in(log).inputs == ["go"]
