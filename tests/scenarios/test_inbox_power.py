"""Power cuts while commands are put into an inbox: each that was taken stays, and the inbox can be used again."""

import asyncio
import random
from pathlib import Path

from refold.scenarios.world.disk_model import DAMAGES, DiskModel
from refold.scenarios.world.sqlite_shim import FileOperation
from refold.stores.sqlite.inbox import InboxFile
from tests.scenarios.world.reached_sqlite import SHIM
from tests.selfcheck.storage.power_loss import put_files

LOG = "events.db"
INBOX = f"{LOG}.inbox"
KEYS = ("1", "2", "3")


async def operations_of_three_commands(folder: Path) -> list[FileOperation | str]:
    """Return what was done to the files, and between that the key of each command that was taken."""
    done: list[FileOperation | str] = [FileOperation("create", INBOX, 0)]

    def watch(operation: FileOperation) -> int:
        done.append(operation)
        return 0

    with SHIM.attached(folder, watch, chance=random.Random(1)):
        for key in KEYS:
            await InboxFile(folder / LOG).add("s", key, key.encode(), 1)
            done.append(key)
    return done


async def keys_after(folder: Path) -> list[str]:
    """Return the commands that are found after a power cut, once another was taken."""
    inbox = InboxFile(folder / LOG)
    kept = [row.key for row in await inbox.waiting("s")]
    await inbox.add("s", "after", b"after", 2)
    assert [row.key for row in await inbox.waiting("s")] == [*kept, "after"]
    return kept


def test_every_command_that_was_taken_is_there_after_a_power_cut(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "run"
    folder.mkdir()
    (folder / LOG).touch()
    model, chance, taken = DiskModel(), random.Random(1), 0
    seen: dict[tuple[object, ...], int] = {}
    with asyncio.Runner() as runner:
        for number, entry in enumerate(runner.run(operations_of_three_commands(folder))):
            if isinstance(entry, str):
                taken += 1
            else:
                model.apply(entry)
            for damage in DAMAGES:
                image = model.image(damage, chance)
                if image.key not in seen:
                    left = tmp_path / f"{number} {damage}"
                    left.mkdir()
                    put_files(left, {LOG: b"", **image.files})
                    kept = runner.run(keys_after(left))
                    assert kept == list(KEYS[: len(kept)])
                    seen[image.key] = len(kept)
                assert taken <= seen[image.key] <= taken + 1, (number, damage)
    assert len(seen) > 100
