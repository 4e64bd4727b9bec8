"""Examples, as their readers run them: killed while they work, and started again."""

import os
from pathlib import Path

from tests.conformance.processes import ROOT, command_line, kill, left_in, run, started


def example(name: str) -> list[str]:
    return command_line(ROOT / "examples" / f"{name}.py")


def output_in(folder: Path, name: str) -> list[str]:
    return run(example(name), cwd=folder, check=True).stdout.splitlines()


def test_the_example_with_subagents_tells_its_article_after_a_kill_and_again(tmp_path: Path) -> None:
    with started(example("subagent"), cwd=tmp_path) as killed:
        while not (tmp_path / "subagent.db").exists() and killed.poll() is None:
            os.sched_yield()
        kill(killed)
    first = output_in(tmp_path, "subagent")
    assert first[-1] == "Tea was drunk in China first. Coffee was drunk in Yemen first."
    assert [line.partition(": ")[2] for line in first[:-1]] == [
        "Find out where people first drank tea",
        "Find out where people first drank coffee",
    ]
    assert output_in(tmp_path, "subagent") == first
    left_in(tmp_path / "subagent.db")


def test_the_example_that_asks_on_the_terminal_asks_again_after_a_kill_and_does_as_it_is_told(tmp_path: Path) -> None:
    with started(example("approval"), cwd=tmp_path) as killed:
        assert killed.stdout is not None
        assert killed.stdout.read(8) == "May mail"
        kill(killed)
    asked = run(example("approval"), cwd=tmp_path, input="yes\nno\n").stdout
    assert asked.count("May mail run with") == 2
    assert "everybody@" not in asked.splitlines()[0]
    answers = asked.splitlines()[-1].split("; ")
    assert sorted(answers[:2])[0] == "The person at the terminal said no."
    assert sorted(answers[:2])[1].startswith("sent to ")
    assert answers[2] == "Not to everybody at once."
    assert run(example("approval"), cwd=tmp_path, input="").stdout == "\n" + asked.splitlines()[-1] + "\n"
    left_in(tmp_path / "approval.db")


def test_the_second_run_of_the_example_of_memories_remembers_the_first(tmp_path: Path) -> None:
    first, second = [output_in(tmp_path, "memory") for _ in range(2)]
    assert first[0] == second[0] == "Anna likes green tea."
    assert first[1].endswith("Anna prefers green tea  (recalled 2 times before)")
    assert second[1].endswith("Anna prefers green tea  (recalled 5 times before)")
    assert "capital of Portugal" in first
    assert first[-3:-1] == ["- language: English", "- last question: What does Anna like?"]
    assert first[-1] == second[-1] == "once: ['Anna visited Lisbon in May']"
