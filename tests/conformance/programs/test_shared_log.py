"""One program, several processes, one log: the owner is killed, or stopped, and another process takes the log over."""

import signal
from pathlib import Path

import pytest

from refold.events.session.events import RunResumed
from tests.conformance.processes import BEGINNING, QUIET, ROOT, STRICT, command_line, kill, left_in, read_until, started

PROGRAM = (
    BEGINNING
    + """
role = sys.argv[2]
hangs = [role] if role in ("hangs", "begins") else []

async def answer(request):
    print("asked", flush=True)
    if hangs:
        hangs.clear()
        await asyncio.Event().wait()
    return "Done."

async def main():
    config, provider = AgentConfig(model="m"), ScriptedProvider([answer] * 9)
    async with AgentRuntime(config, provider=provider, log=log, share=True) as runtime:
        print("owner" if runtime.is_owner else "guest", flush=True)
        session = await runtime.session("s")
        sending = [session.send("begun")] if role == "begins" else []
        sending += [session.send("go", key="k")] if role in ("sends", "stays") else []
        for sent in [asyncio.ensure_future(each) for each in sending]:
            print("answered", (await sent).text, runtime.is_owner, flush=True)
        if role != "sends":
            await asyncio.to_thread(sys.stdin.readline)
        if role == "begins":
            print("late", (await session.send("late")).text, runtime.is_owner, flush=True)

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
@pytest.mark.parametrize("stays", [False, True])
def test_an_owner_that_was_stopped_keeps_the_log_or_goes_on_as_a_guest(tmp_path: Path, stays: bool) -> None:
    log = tmp_path / "events.db"
    with started(worker(log, "begins")) as owner:
        read_until(owner, "asked")
        owner.send_signal(signal.SIGSTOP)
        with started(worker(log, "stays" if stays else "sends")) as guest:
            read_until(guest, "guest")  # The lock is the stopped one's, and silence makes no owner of another process.
            log.with_name(f"{log.name}.lock").unlink()
            assert read_until(guest, "answered") == "answered Done. True\n"
            if not stays:  # It has taken the log and let it go, and the other one takes it again.
                guest.communicate(timeout=60)
            owner.send_signal(signal.SIGCONT)
            read_until(owner, "answered Done.")
            assert owner.stdin is not None
            print(file=owner.stdin, flush=True)
            assert read_until(owner, "late") == f"late Done. {not stays}\n"
            if stays:
                assert guest.communicate("\n", timeout=60)[1] == ""
            complaints = owner.communicate(timeout=60)[1]
            assert (owner.returncode, "Warning" in complaints) == (0, False), complaints
    assert left_in(log).inputs == ["begun", "go", "late"]


HOSTING = (
    BEGINNING
    + """
from refold.remote import owner
from tests.runtime.sample_tills import Pay, TillCore

async def killed_after(*given, perform=owner.performed_by_actor):
    await perform(*given)  # It is in the log, and nobody knows.
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=log, share=True) as runtime:
        if runtime.is_owner:
            owner.performed_by_actor = killed_after
        tills = await runtime.host("till", TillCore)
        print("owner" if runtime.is_owner else "guest", flush=True)
        if runtime.is_owner:
            await asyncio.Event().wait()
        performed = await tills.ask("t", Pay(amount=5, key="k"))
        again = await tills.ask("t", Pay(amount=5, key="k"))
        amount = await tills.read("t", lambda state: state.amount)
        print("paid", performed.version, again.version, again.new, amount, runtime.is_owner, flush=True)

asyncio.run(main())
"""
)


def test_a_command_to_a_hosted_actor_takes_effect_once_though_its_owner_is_killed_in_the_middle(tmp_path: Path) -> None:
    line = command_line(*STRICT, "-c", HOSTING, tmp_path / "events.db")
    settings = {"env": {**QUIET, "PYTHONPATH": str(ROOT)}}  # Where the till is.
    with started(line, **settings) as owner:
        read_until(owner, "owner")
        with started(line, **settings) as guest:
            read_until(guest, "guest")
            assert read_until(guest, "paid") == "paid 1 1 False 5 True\n"
            assert guest.communicate(timeout=60)[1] == ""
