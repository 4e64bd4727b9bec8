"""What is installed is one import package, `refold`, with everything that lies in the five folders and nothing else."""

import fnmatch
import json
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import refold

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
"""Import name of each layer → its folder."""

REQUIREMENTS: list[str] = [
    *PYPROJECT["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(
        requirement
        for group in PYPROJECT["dependency-groups"].values()
        for requirement in group
        if isinstance(requirement, str)
    ),
    *(requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra),
]


def packages() -> dict[str, Path]:
    """Return every package in the five folders: import name → folder."""
    found: dict[str, Path] = {}
    for name, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found[".".join((name, *inner))] = init.parent
    return found


def requirement_name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_package_folder_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == set(packages())


def test_every_folder_with_modules_is_a_package() -> None:
    with_modules = {path.parent for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")}
    assert with_modules == set(packages().values())


def test_no_runtime_module_hides_a_layer() -> None:
    layers = {name.partition(".")[2] for name in FOLDERS} - {""}
    assert layers.isdisjoint(path.stem for path in (ROOT / "runtime").iterdir())


def test_every_data_file_is_shipped() -> None:
    patterns: dict[str, list[str]] = SETUPTOOLS["package-data"]
    forgotten = [
        str(path.relative_to(ROOT))
        for name, folder in packages().items()
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix not in {".py", ".pyc"}
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns.get(name, []))
    ]
    assert forgotten == []


@pytest.mark.parametrize(("package", "name"), [("refold", "py.typed"), ("refold.stores.sqlite", "schema.sql")])
def test_a_data_file_is_found_in_the_installed_package(package: str, name: str) -> None:
    assert resources.files(package).joinpath(name).is_file()


def test_no_test_lies_inside_a_layer() -> None:
    inside = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS.values()
        for pattern in ("test_*.py", "*_test.py", "conftest.py")
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert inside == []


def test_the_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_one_import_name_is_installed() -> None:
    assert (metadata.distribution("refold").read_text("top_level.txt") or "").split() == ["refold"]


def test_the_version_is_the_same_wherever_it_stands() -> None:
    assert metadata.version("refold") == PROJECT["version"] == refold.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == PROJECT["version"]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_runs_only_programs_that_are_there(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [step for job in workflow.get("jobs", {}).values() for step in job["steps"]]
    assert steps or "body" in workflow or path.stem == "config"
    programs = {word for step in steps for word in re.findall(r"(?<!\S)\.ci/\w+(?:\.\w+)*", step.get("run", ""))}
    assert [program for program in programs if not (ROOT / program).is_file()] == []


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_a_lower_bound_and_an_upper_one_for_a_private_name(
    requirement: str,
) -> None:
    assert ">=" in requirement
    bounds = re.findall(r"(?:<|==|~=).*", requirement)
    assert bounds == (["<0.23"] if requirement_name(requirement) == "aiosqlite" else [])


PIN = re.compile(r"^([a-z0-9-]+)==([^ ;\n]+)( ; [^\\\n]+)?(?= \\|$)", re.MULTILINE)
"""Name, version and condition of a pin, in `constraints.txt` and in `.ci/locked.txt`."""


def test_every_requirement_is_pinned_in_the_constraints() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert [pin for pin in pins if not PIN.fullmatch(pin)] == []
    assert {requirement_name(requirement) for requirement in REQUIREMENTS} <= {name for name, *_ in PIN.findall(text)}


def test_each_pin_has_the_hashes_of_its_files_and_both_lists_agree() -> None:
    """`pip install --require-hashes -r .ci/locked.txt` takes no file but those of that day."""
    locked = (ROOT / ".ci" / "locked.txt").read_text(encoding="utf-8")
    assert PIN.findall(locked) == PIN.findall((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    hashed = re.compile(PIN.pattern + r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n", re.MULTILINE)
    assert re.sub(r"^#.*\n", "", hashed.sub("", locked), flags=re.MULTILINE) == ""


DOORS = {
    "cron": ["first_time(repeat_of('0 9 * * *', 'UTC'), 0)"],
    "inspect": ["command('inspect', 'events.db')"],
    "otel": ["current_traceparent()", "SpanSender(None)", "command('trace', 'events.db', '--otlp', 'http://[::1]:1')"],
    "prometheus": ["prometheus_text(MetricsSnapshot())", "command('metrics', 'events.db', '--prometheus')"],
    "redis": ["refold.resilience.RedisBreakerState"],
    "rehearsal": ["refold.scenarios.SessionMachine", "importlib.import_module('refold.scenarios.strategies')"],
}
"""What needs each extra."""

WITHOUT_EXTRAS = """
import importlib, json, sys
packages, doors = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(packages))
import refold.agent_runtime, refold.resilience, refold.scenarios
from refold.commands.cli import app
from refold.metrics import MetricsSnapshot, prometheus_text
from refold.sessions.inputs import first_time, repeat_of
from refold.tracing import SpanSender, current_traceparent
from typer.testing import CliRunner

def command(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done
    raise refold.ConfigError(" ".join(done.output.split()))

for door in doors:
    try:
        eval(door)
    except refold.ConfigError as error:
        print(error)
"""


def test_what_needs_an_extra_that_is_not_installed_says_which_and_all_else_works(tmp_path: Path) -> None:
    extras = PROJECT["optional-dependencies"]
    assert DOORS.keys() == extras.keys() - {"dev"}
    doors = [(door, extra) for extra, listed in DOORS.items() for door in listed]
    packages = {requirement_name(one).partition("-")[0] for extra in DOORS for one in extras[extra]}
    told = json.dumps([sorted(packages - {"prometheus"} | {"prometheus_client"}), [door for door, _ in doors]])
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_EXTRAS, told], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(doors)
    for line, (door, extra) in zip(lines, doors, strict=True):
        assert re.search(rf"need the package \w+: pip install 'refold\[{extra}\]'", line), (door, line)


FAULT = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "NOT AUDITED: no database answers here\n"),
        ([{"name": "a", "skip_reason": "not found"}], "NOT AUDITED: no database answers here\n"),
        ([{"name": "a", "version": "1", "vulns": []}], "no known fault in 1 packages\n"),
        ([{"name": "a", "version": "1", "vulns": [FAULT]}], "a 1: PYSEC-1, mended in ['2']"),
    ],
)
def test_an_audit_fails_only_for_a_known_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: list[object] | None, told: str
) -> None:
    path = tmp_path / "audit.json"
    if answer is not None:
        path.write_text(json.dumps({"dependencies": answer}))
    main = runpy.run_path(str(ROOT / ".ci" / "audited.py"))["main"]
    if "PYSEC" in told:
        with pytest.raises(SystemExit, match=re.escape(told)):
            main(str(path))
    else:
        main(str(path))
        assert capsys.readouterr().out == told


def test_the_bill_of_materials_names_every_package_and_refuses_a_licence_that_is_not_allowed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, said in (
        ("refold", "Requires-Dist: Some_Thing>=1\nLicense-Expression: MIT"),
        ("some-thing", "License: BSD"),
    ):
        information = packages / f"{name}-1.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n{said}\n")
    main = runpy.run_path(str(ROOT / ".ci" / "sbom.py"))["main"]
    main(str(tmp_path), str(tmp_path / "bill.json"))
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert [part["purl"] for part in bill["components"]] == ["pkg:pypi/some-thing@1"]
    assert bill["dependencies"][0] == {"ref": "pkg:pypi/refold@1", "dependsOn": ["pkg:pypi/some-thing@1"]}
    (information / "METADATA").write_text("Metadata-Version: 2.4\nName: some-thing\nVersion: 1\nLicense: Secret\n")
    with pytest.raises(SystemExit, match=r"not in the list of those allowed: some-thing \('Secret'\)"):
        main(str(tmp_path), str(tmp_path / "bill.json"))
