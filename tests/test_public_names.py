"""Every package names what it offers, and each name loads when it is first used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = (
    "refold",
    "refold.actors",
    "refold.bundles",
    "refold.events",
    "refold.lineage",
    "refold.memory",
    "refold.metrics",
    "refold.providers",
    "refold.replay",
    "refold.resilience",
    "refold.scenarios",
    "refold.stores",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_is_kept(package: str) -> None:
    module = import_module(package)
    assert dir(module) == sorted(module.__all__)
    beside = {path.stem for path in Path(module.__file__ or "").parent.iterdir()}
    assert not beside.intersection(module.__all__), "a module takes the place of the name once it is imported"
    for name in module.__all__:
        value = getattr(module, name)
        assert vars(module)[name] is value


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_read_the_same_names_from_the_same_modules_as_python(package: str) -> None:
    module = import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    [names] = [node for node in tree.body if isinstance(node, ast.If)]
    aliases = [(node.module, alias) for node in names.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [alias.name for _, alias in aliases if alias.asname != alias.name] == []
    [table] = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    listed = {name: home for home, names in ast.literal_eval(table).items() for name in names.split()}
    assert {alias.name: home for home, alias in aliases} == listed


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = import_module(package).nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_none_of_its_modules(package: str) -> None:
    script = f"import sys, {package}; print(*(name for name in sys.modules if name.startswith({package + '.'!r})))"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["refold._lazy"] if package == "refold" else [])
