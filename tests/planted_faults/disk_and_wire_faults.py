"""One-line faults of the store on SQLite and of the providers, that scenarios with a disk or a wire must find.

Those of the store that only a power cut or a failing disk shows are looked for by the rehearsal of storage, which has
many more of both than a scenario.
"""

from tests.planted_faults.scenario_fault import ANTHROPIC, DISK, OPENAI, POWER, SQLITE, ScenarioFault

NOT_WITHIN_25 = "no one of 25 scenarios of that world did"
ANEW = "after an error the file is opened anew, which forgets all that and rolls back"
STALE = "a stale owner is refused before versions are compared"
BESIDE_SQLITE = "Python syncs it, beside SQLite, and the simulated disk takes the store's word for that"

DISK_FAULTS = (
    ScenarioFault(
        name="a COMMIT is left out",
        file="stores/sqlite/append.py",
        original=('            connection.execute("COMMIT")\n            self._fault("append.committed")\n'),
        planted='            self._fault("append.committed")\n',
        world=SQLITE,
    ),
    ScenarioFault(
        name="the version that an append to SQLite expects is not checked",
        not_found=STALE,
        file="stores/sqlite/append.py",
        original=("            if version != batch.expected_version:\n                raise"),
        planted=("            if version > batch.expected_version + 1_000:\n                raise"),
        world=SQLITE,
    ),
    ScenarioFault(
        name="a stale owner writes on",
        file="stores/sqlite/append.py",
        original="        if incarnation != self._incarnation:\n",
        planted="        if incarnation < 0:\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="ends of streams are remembered beyond an error",
        not_found=ANEW,
        file="stores/sqlite/append.py",
        original=("        self._heads.clear()\n        if self._connection.in"),
        planted="        if self._connection.in",
        world=SQLITE,
    ),
    ScenarioFault(
        name="a transaction that failed is left open",
        file="stores/sqlite/append.py",
        original='            self._connection.execute("ROLLBACK")\n',
        planted="            pass\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="after an I/O error the outcome is taken for known",
        file="stores/sqlite/append.py",
        original=('            outcome = "unknown"\n        if outcome == "in":'),
        planted=('            pass\n        if outcome == "in":'),
        world=DISK,
    ),
    ScenarioFault(
        name="a COMMIT that failed is told as done",
        file="stores/sqlite/append.py",
        original="else self._outcome(batches, appended)\n",
        planted='else "in"\n',
        world=DISK,
    ),
    ScenarioFault(
        name="SQLite's list of streams lacks the effects in flight",
        file="stores/sqlite/append.py",
        original='            pending = " ".join(batch.pending)\n',
        planted='            pending = ""\n',
        world=SQLITE,
    ),
    ScenarioFault(
        name="the end of a stream in SQLite stays where it was",
        file="stores/sqlite/append.py",
        original="        self._execute_for_each(MOVE_HEAD, list(heads.values()))\n",
        planted="",
        world=SQLITE,
    ),
    ScenarioFault(
        name="payloads are not written into SQLite",
        file="stores/sqlite/append.py",
        original="        if payloads:\n",
        planted="        if not payloads:\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="of a batch the second event is not written",
        file="stores/sqlite/append.py",
        original="    for index in range(1, len(events)):\n",
        planted="    for index in range(2, len(events)):\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="after a snapshot appends are not synchronised",
        file="stores/sqlite/append.py",
        original='connection.execute(f"PRAGMA synchronous = {synchronous}")',
        planted="pass",
        world=POWER,
    ),
    ScenarioFault(
        name="a batch in SQLite is not chained to the one before",
        file="stores/sqlite/append.py",
        original="            chain = next_chain(chain, batch)\n",
        planted="            chain = next_chain(first_chain(stream), batch)\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="a reference is shortened too much",
        file="stores/sqlite/append.py",
        original="reference[len(own) - 1 :]",
        planted="reference[len(own) :]",
        world=SQLITE,
    ),
    ScenarioFault(
        name="a snapshot is kept as one of another version",
        file="stores/sqlite/append.py",
        original="        row = (snapshot.version, snapshot",
        planted="        row = (snapshot.version + 1, snapshot",
        world=POWER,
    ),
    ScenarioFault(
        name="appends are not synchronised",
        file="stores/sqlite/file.py",
        original='{"full": "FULL", ',
        planted='{"full": "NORMAL", ',
        world=SQLITE,
    ),
    ScenarioFault(
        name="what the WAL holds is built upon without being written again",
        file="stores/sqlite/file.py",
        original='        if write_again(_beside(log, "-wal")):\n',
        planted='        if _is_beside(log, "-none"):\n',
        world=DISK,
    ),
    ScenarioFault(
        name="the name of a new log is not synchronised",
        file="stores/sqlite/file.py",
        original='        synchronise(log.parent)\n        fault("opening.folder_synced")\n',
        planted="",
        world=POWER,
    ),
    ScenarioFault(
        name="a new log is not synchronised",
        file="stores/sqlite/file.py",
        original=('    connection.execute("PRAGMA synchronous = FULL")\n    connection.executescript'),
        planted=('    connection.execute("PRAGMA synchronous = OFF")\n    connection.executescript'),
        world=POWER,
    ),
    ScenarioFault(
        name="another runtime's takeover is not noticed at an opening",
        not_found=NOT_WITHIN_25,
        file="stores/sqlite/file.py",
        original="        if ours and incarnation not in ours:\n",
        planted="        if ours and incarnation < 0:\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="what is written again is not synchronised",
        not_found=BESIDE_SQLITE,
        file="stores/sqlite/rewrite.py",
        original="            os.fsync(descriptor)\n",
        planted="            pass\n",
        world=DISK,
    ),
    ScenarioFault(
        name="after a write in doubt the file is not opened anew",
        file="stores/sqlite/writer.py",
        original=("            if self._suspect:\n                await self._open_anew()\n            future"),
        planted="            future",
        world=DISK,
    ),
    ScenarioFault(
        name="a write in doubt is trusted",
        not_found="neither two rehearsals with failing disks nor 15 drawn scenarios did",
        file="stores/sqlite/writer.py",
        original="                self._suspect = _in_doubt(future)\n",
        planted="                self._suspect = False\n",
        world=DISK,
    ),
    ScenarioFault(
        name="the reader stays connected while the file is opened anew",
        not_found="two rehearsals with failing disks did not",
        file="stores/sqlite/writer.py",
        original="        await self._close_reader()\n",
        planted="",
        world=DISK,
    ),
    ScenarioFault(
        name="the ownership of a closed log is kept",
        not_found="each life has an event loop of its own, and the lock of a loop that is closed is taken over",
        file="stores/sqlite/writer.py",
        original=("        finally:\n            self._ownership.release()\n"),
        planted=("        finally:\n            pass\n"),
        world=SQLITE,
    ),
    ScenarioFault(
        name="a write is acknowledged before it is made",
        file="stores/sqlite/writer.py",
        original="                return await settled(future, timeout_s=self._timeout_s)\n",
        planted=(
            "                asyncio.ensure_future(settled(future, timeout_s=self._timeout_s))\n"
            '                return [Appended(stream="", position=1, version=1, chain=b"")]  # type: ignore\n'
        ),
        world=SQLITE,
    ),
    ScenarioFault(
        name="a stream is read from one event too early",
        not_found="what scenarios have read of a stream begins at its beginning",
        file="stores/sqlite/read.py",
        original="AND version > ? ORDER BY version LIMIT ?\n",
        planted="AND version >= ? ORDER BY version LIMIT ?\n",
        world=SQLITE,
    ),
    ScenarioFault(
        name="streams with work in flight are left out of SQLite's list",
        file="stores/sqlite/read.py",
        original="\"WHERE pending <> '' AND\")",
        planted="\"WHERE pending = '' AND\")",
        world=SQLITE,
    ),
    ScenarioFault(
        name="of the effects in flight only the first is read",
        file="stores/sqlite/read.py",
        original='    return tuple(text.split(" ")) if',
        planted='    return tuple(text.split(" ")[:1]) if',
        world=SQLITE,
    ),
    ScenarioFault(
        name="payloads that are read are not found",
        file="stores/sqlite/read.py",
        original="            found[wanted] = row[0]\n",
        planted='            found.setdefault(wanted, b"")\n',
        world=SQLITE,
    ),
)

WIRE_FAULTS = (
    ScenarioFault(
        name="an answer that was cut is taken for whole",
        file="runtime/providers/openai/stream.py",
        original="        if assembly.finish_reason is None:\n",
        planted="        if assembly.finish_reason is None and not assembly.said_something:\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="connections outlive their process",
        file="runtime/providers/http/client.py",
        original=("    finally:\n        await _close_all(clients)\n"),
        planted=("    finally:\n        pass\n"),
        world=OPENAI,
    ),
    ScenarioFault(
        name="a key gets into the log",
        file="runtime/providers/http/secrets.py",
        original="        values = {*(secret.reveal() for secret in secrets), *(",
        planted="        values = {*(",
        world=OPENAI,
    ),
    ScenarioFault(
        name="results of tools are not sent",
        file="runtime/providers/openai/request.py",
        original="            self._write_result(self._ids[call.id], result)\n",
        planted=(
            "            if result is not None and not result.is_error:\n"
            "                self._write_result(self._ids[call.id], result)\n"
        ),
        world=OPENAI,
    ),
    ScenarioFault(
        name="the pause that a host asks for is not told",
        not_found="it costs time, and nobody outside sees it",
        file="runtime/providers/http/provider.py",
        original="        error.retry_after_s = retry_after_s(exchange.headers)\n",
        planted="",
        world=OPENAI,
    ),
    ScenarioFault(
        name="what was counted before is forgotten",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/anthropic/stream.py",
        original='usage_of(data.get("usage"), self._usage)',
        planted='usage_of(data.get("usage"))',
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="the first piece of a block is dropped",
        file="runtime/providers/anthropic/stream.py",
        original='        joined = "".join(self.pieces)\n',
        planted='        joined = "".join(self.pieces[1:])\n',
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="of a text only the newest piece is kept",
        file="runtime/providers/openai/answer.py",
        original='        return "".join(self._pieces) + clean_text',
        planted='        return "".join(self._pieces[-1:]) + clean_text',
        world=OPENAI,
    ),
    ScenarioFault(
        name="a lost connection is told as final",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/http/exchange.py",
        original='kind="connection", retryable=True\n',
        planted='kind="connection", retryable=False\n',
        world=OPENAI,
    ),
    ScenarioFault(
        name="a host's refusal is read as an answer",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/http/provider.py",
        original="                if not 200 <= exchange.status < 300:\n",
        planted="                if exchange.status < 200:\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="a host that says nothing is waited for without end",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/http/exchange.py",
        original=(
            "        step_ends_at = now + (math.inf if patience_s is None else patience_s)\n"
            "        ends_at = min(step_ends_at, self._ends_at)\n"
        ),
        planted="        step_ends_at = ends_at = math.inf\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="a response that was given up stays open",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/http/provider.py",
        original=("            finally:\n                await exchange.close()\n"),
        planted=("            finally:\n                pass\n"),
        world=OPENAI,
    ),
    ScenarioFault(
        name="a connection that never answered is kept",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/http/client.py",
        original="        if self.closed or not answered:\n",
        planted="        if self.closed:\n",
        world=OPENAI,
    ),
    ScenarioFault(
        name="a host that fails is told as a mistake of ours",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/anthropic/errors.py",
        original="    if status is None or status >= 500:\n",
        planted="    if status is None:\n",
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="why an answer ended is forgotten",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/anthropic/stream.py",
        original="            self._stop_reason = reason\n",
        planted="            self._stop_reason = self._stop_reason\n",
        world=ANTHROPIC,
    ),
    ScenarioFault(
        name="two calls of one id are one",
        not_found=NOT_WITHIN_25,
        file="runtime/providers/openai/calls.py",
        original="        return call if _cannot_begin(fragment, behind=call) else None\n",
        planted="        return call\n",
        world=OPENAI,
    ),
)
