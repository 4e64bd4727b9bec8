"""The rules of the house that a program can check: who may import whom, folders, sizes, names, no error swallowed.

Everything here reads source text, so it needs no install; only the tests of what an import loads run Python. Each rule
is a function that returns what breaks it, tried on the product and on something planted.
"""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = ("events", "stores", "actors", "runtime", "scenarios")
"""From the left to the right: a layer imports itself and what stands before it."""

PURE_MODULES = {
    "abc",
    "base64",
    "bisect",
    "codecs",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "difflib",
    "dis",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
    "unicodedata",
}
"""All that `events` may import from outside: nothing here reads a clock, a random source, a file or the process."""

IMPURE_BUILTINS = {"__import__", "breakpoint", "compile", "eval", "exec", "hash", "id", "input", "open", "print"}
"""What `events` may not call; `hash` and `id` differ from one process to the next."""

AT_HOME_IN = {
    "numpy": ("runtime/memory/",),
    "sqlite3": (
        "runtime/replay/shadow/acts.py",
        "scenarios/world/inbox.py",
        "stores/",
        "tests/selfcheck/storage/recovery_reader.py",
        "tests/selfcheck/storage/workload.py",
        "tests/selfcheck/hostile/table_mutations.py",
    ),
    "httpx": ("runtime/", "scenarios/wire/network.py"),
    "rich": ("runtime/", "scenarios/"),
    "typer": ("runtime/", "scenarios/"),
    "argparse": ("runtime/",),
    "datetime": ("runtime/",),
    "secrets": ("runtime/",),
    "uuid": ("runtime/",),
    "time": ("actors/kernel/clock.py", "runtime/"),
    "random": ("runtime/", "scenarios/"),
    "hypothesis": ("scenarios/",),
}
"""Modules that may be imported only in some places: SQL is the stores' business; clock and randomness are injected."""

HEAVY_MODULES = {"cronsim", "httpx", "hypothesis", "networkx", "numpy", "opentelemetry", "pydantic", "rich", "typer"}
"""What `import refold` must not load."""

NOT_FOR_A_PLAIN_TURN = (
    *(f"refold.{name}" for name in ("commands", "connections", "inspection.export", "inspection.kinds", "page")),
    *(f"refold.{name}" for name in ("providers.react", "react", "replay", "tracing", "stores.jsonl")),
    *(f"refold.memory.{name}" for name in ("embedding", "episodic", "graph", "semantic", "working")),
    *(f"refold.events.kinds.{name}" for name in ("deduplicator", "episodic", "graph", "semantic", "working_memory")),
    *sorted(HEAVY_MODULES),
    "zoneinfo",
)
"""How the names begin of what importing a runtime and an agent must not load, since no plain turn needs it."""

RUNTIME_MODULES_MAX = 228
"""Most modules of ours that importing a runtime and an agent loads; it may fall."""

OF_NO_LAYER = "refold._lazy"
"""Makes the front door of every package; it imports nothing of ours, so all layers may use it."""

FOLDER_FILES_MAX = 12
"""Python files of one folder, beside its `__init__`."""
MODULE_LINES_MAX = 600
SHELL = ROOT / "actors" / "shell" / "event_sourced.py"
SHELL_LINES_MAX = 300
"""Of the shell, which is read from top to bottom: what is no step of handling a message has a module of its own."""
FUNCTION_LINES_MAX = 100
FUNCTION_LINES_P90_MAX = 45
"""Nine functions of ten have at most so many lines."""
VAGUE_WORDS = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}

MODULES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
EVENTS = [path for path in MODULES if path.is_relative_to(ROOT / "events")]
BROAD_ERRORS = {"BaseException", "Exception"}

Sources = Mapping[str, ast.Module]
"""Modules, parsed, by their paths from the top folder."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def broken(found_in: Callable[[Path], object], modules: Iterable[Path] = MODULES) -> dict[str, object]:
    """Return what breaks a rule, by the module in which it was found."""
    found = {name_of(path): found_in(path) for path in modules}
    return {name: faults for name, faults in found.items() if faults}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Keep what was parsed, which takes 150 MB, no longer than for the rules of this module."""
    yield
    tree_of.cache_clear()


def product() -> Sources:
    return {name_of(path): tree_of(path) for path in MODULES}


def planted(files: Mapping[str, str]) -> Sources:
    return {name: ast.parse(text) for name, text in files.items()}


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything imported, also inside functions and under TYPE_CHECKING.

    `from a.b import c` gives `a.b.c`, which may be a module or a name in one. A relative import keeps its dots.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def imported_layer(name: str) -> str | None:
    """Return the layer that an imported name belongs to, or None if it is not ours."""
    package, _, rest = name.partition(".")
    if package != "refold" or name == OF_NO_LAYER or name.startswith(f"{OF_NO_LAYER}."):
        return None
    layer = rest.partition(".")[0]
    return layer if layer in LAYERS and layer != "runtime" else "runtime"


def imports_against_the_direction(tree: ast.Module, layer: str) -> list[str]:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    return [
        f"line {line}: {name}"
        for line, name in imports(tree)
        if name.startswith(".") or (imported_layer(name) or layer) not in allowed
    ]


def dependence_on_the_process(tree: ast.Module) -> list[str]:
    """Return what makes a result depend on what ran before or on the hash seed: globals, and the order of sets."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Global() | ast.Nonlocal():
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.For(iter=walked) | ast.comprehension(iter=walked) | ast.Starred(value=walked) if is_set(walked):
                found.append(f"line {walked.lineno}: the order of {ast.unparse(walked)}")
            case ast.Call(func=ast.Name(id="list" | "tuple" | "next" | "iter"), args=[walked, *_]) if is_set(walked):
                found.append(f"line {walked.lineno}: the order of {ast.unparse(walked)}")
            case ast.Call(func=ast.Attribute(attr="join"), args=[walked]) if is_set(walked):
                found.append(f"line {walked.lineno}: the order of {ast.unparse(walked)}")
            case _:
                continue
    return found


def is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr="union" | "intersection" | "difference" | "symmetric_difference")):
            return True
        case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
            return is_set(left) or is_set(right)
        case _:
            return False


def swallowed_errors(tree: ast.Module) -> list[str]:
    """Return the handlers that do nothing, and the `contextlib.suppress` of everything."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(body=body) if all(is_empty_statement(statement) for statement in body):
                found.append(f"line {node.lineno}: except that does nothing")
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=arguments):
                if BROAD_ERRORS & {ast.unparse(argument) for argument in arguments}:
                    found.append(f"line {node.lineno}: {ast.unparse(node)}")
            case _:
                continue
    return found


def is_empty_statement(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Expr(value=ast.Constant()):
            return True
        case _:
            return False


def loaded_by(statement: str) -> set[str]:
    """Return the names of all modules that a fresh interpreter holds after `statement`."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    # -I: neither the current folder nor the user's environment decides what is found.
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_every_layer_has_modules() -> None:
    assert {layer_of(path) for path in MODULES} == set(LAYERS)


def test_the_module_of_no_layer_imports_nothing_of_ours() -> None:
    home = ROOT / "runtime" / f"{OF_NO_LAYER.rpartition('.')[2]}.py"
    assert [name for _, name in imports(tree_of(home)) if name.partition(".")[0] == "refold"] == []


def dotted(name: str) -> str:
    """Return the name by which a module, or the package of an `__init__`, is imported."""
    layer, *rest = name.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["refold", *([] if layer == "runtime" else [layer]), *rest])


def is_front_door(name: str, tree: ast.Module) -> bool:
    """Tell whether a module is an `__init__` that defines nothing and only passes on names of others."""
    defines = any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) for node in tree.body)
    return Path(name).name == "__init__.py" and not defines


def import_graph(sources: Sources) -> "nx.DiGraph[str]":
    """Return which module imports which; a name that a front door passes on is imported from where it lies."""
    modules = {name: tree for name, tree in sources.items() if not is_front_door(name, tree)}
    doors = {name: tree for name, tree in sources.items() if name not in modules}
    homes = {dotted(name): name for name in modules}
    passed_on = {
        f"{dotted(door)}.{name.rpartition('.')[2]}": name for door, tree in doors.items() for _, name in imports(tree)
    }
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(modules)
    for name, tree in modules.items():
        for _, imported in imports(tree):
            origin = passed_on.get(imported, imported)
            home = homes.get(origin) or homes.get(origin.rpartition(".")[0])
            if home is not None and home != name:
                graph.add_edge(name, home)
    return graph


def circles(graph: "nx.DiGraph[str]") -> list[list[str]]:
    return sorted(sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1)


def inside(folder: str, graph: "nx.DiGraph[str]") -> "nx.DiGraph[str]":
    """Return which module or subfolder of a folder imports which, each subfolder drawn together to one point."""
    drawn: nx.DiGraph[str] = nx.DiGraph()
    for importer, imported in graph.edges:
        if importer.startswith(f"{folder}/") and imported.startswith(f"{folder}/"):
            ends = [end.removeprefix(f"{folder}/").partition("/")[0] for end in (importer, imported)]
            if ends[0] != ends[1]:
                drawn.add_edge(*ends)
    return drawn


def folders_without_order(graph: "nx.DiGraph[str]") -> dict[str, list[list[str]]]:
    """Return what imports each other in a circle inside a folder: its modules and its subfolders as wholes."""
    folders = {str(folder) for name in graph for folder in Path(name).parents} - {"."}
    found = {folder: circles(inside(folder, graph)) for folder in sorted(folders)}
    return {folder: in_circles for folder, in_circles in found.items() if in_circles}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(import_graph(product())) == []


@pytest.mark.parametrize(
    "of_b",
    [
        "from refold.events.a import A",
        "import refold.events.a",
        "from refold.events import a",
        "def later():\n    from refold.events.a import A",
        "if TYPE_CHECKING:\n    from refold.events.a import A",
        "from refold.events import A",
    ],
)
def test_a_circle_is_found_however_it_is_closed(of_b: str) -> None:
    door = "if TYPE_CHECKING:\n    from refold.events.a import A as A"
    files = {"events/__init__.py": door, "events/a.py": "from refold.events.b import B", "events/b.py": of_b}
    assert circles(import_graph(planted(files))) == [["events/a.py", "events/b.py"]]


def test_folders_have_an_order() -> None:
    assert folders_without_order(import_graph(product())) == {}


def test_folders_that_need_each_other_are_found_though_no_modules_do() -> None:
    files = {
        "runtime/top.py": "from refold.near.a import A\nfrom refold.far.b import B",
        "runtime/near/a.py": "from refold.far.b import B",
        "runtime/near/c.py": "",
        "runtime/far/b.py": "",
        "runtime/far/d.py": "from refold.near.c import C",
    }
    graph = import_graph(planted(files))
    assert circles(graph) == []
    assert folders_without_order(graph) == {"runtime": [["far", "near"]]}
    assert folders_without_order(import_graph(planted({**files, "runtime/far/d.py": ""}))) == {}


def overfull_folders(sources: Sources) -> dict[str, int]:
    files: dict[str, int] = defaultdict(int)
    for name in sources:
        files[str(Path(name).parent)] += Path(name).name != "__init__.py"
    return {folder: count for folder, count in files.items() if count > FOLDER_FILES_MAX}


def test_a_folder_can_be_seen_at_a_glance() -> None:
    assert overfull_folders(product()) == {}


def test_an_overfull_folder_is_found() -> None:
    files = {f"events/{place}.py": "" for place in range(FOLDER_FILES_MAX)}
    assert overfull_folders(planted({**files, "events/__init__.py": "", "events/more/a.py": ""})) == {}
    assert overfull_folders(planted({**files, "events/one.py": ""})) == {"events": FOLDER_FILES_MAX + 1}


def folders_without_a_guide(sources: Sources) -> list[str]:
    """Return the folders whose `__init__` does not say in its docstring what to read first, and that it is there."""
    modules = {dotted(name) for name in sources}
    found: list[str] = []
    for folder in sorted({str(Path(name).parent) for name in sources}):
        front = sources.get(f"{folder}/__init__.py")
        named = re.search(r"\bRead\s+`([\w.]+)`", (ast.get_docstring(front) or "") if front is not None else "")
        if named is None or not {named[1], f"{dotted(f'{folder}/__init__.py')}.{named[1]}"} & modules:
            found.append(folder)
    return found


def test_a_folder_says_what_to_read_first() -> None:
    assert folders_without_a_guide(product()) == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"events/__init__.py": '"""Data.\n\nRead `a` first."""', "events/a.py": ""}, []),
        ({"events/__init__.py": '"""Data.\n\nRead `refold.events.a` first."""', "events/a.py": ""}, []),
        ({"events/__init__.py": '"""Data.\n\nRead `b` first."""', "events/a.py": ""}, ["events"]),
        ({"events/__init__.py": '"""Data."""', "events/a.py": ""}, ["events"]),
        ({"events/a.py": ""}, ["events"]),
    ],
)
def test_a_folder_without_a_guide_is_found(files: dict[str, str], found: list[str]) -> None:
    assert folders_without_a_guide(planted(files)) == found


def impure_imports(path: Path) -> set[str]:
    outside = {name for _, name in imports(tree_of(path)) if imported_layer(name) is None}
    # A layer's front door loads its modules when they are first used. `BytesIO` is a buffer in memory.
    allowed = {"io.BytesIO", *([f"{OF_NO_LAYER}.lazy"] if path.name == "__init__.py" else [])}
    return {name.partition(".")[0] for name in outside - allowed} - PURE_MODULES


def impure_calls(path: Path) -> set[str]:
    called = {
        node.func.id
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return called & IMPURE_BUILTINS


def imports_away_from_home(path: Path) -> list[str]:
    return [
        f"line {line}: {name}"
        for line, name in imports(tree_of(path))
        if not name_of(path).startswith(AT_HOME_IN.get(name.partition(".")[0], ""))
    ]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("statement", ["import {}", "from {} import *"])
def test_a_layer_and_all_its_public_names_load_none_to_its_right(statement: str, layer: str) -> None:
    loaded = loaded_by(statement.format("refold" if layer == "runtime" else f"refold.{layer}"))
    # The package `refold` is every layer's parent; its own modules are the runtime.
    layers = {imported_layer(name) for name in loaded - {"refold"}} - {None}
    assert layers <= set(LAYERS[: LAYERS.index(layer) + 1])


def test_importing_refold_is_light() -> None:
    assert {name.partition(".")[0] for name in loaded_by("import refold")}.isdisjoint(HEAVY_MODULES)


def test_importing_a_runtime_and_an_agent_loads_nothing_that_a_plain_turn_does_not_need() -> None:
    loaded = loaded_by("from refold import AgentConfig, AgentRuntime, tool")
    assert not {name for name in loaded if name.startswith(NOT_FOR_A_PLAIN_TURN)}
    assert len([name for name in loaded if name.startswith("refold")]) <= RUNTIME_MODULES_MAX


def lines_too_many(path: Path, most: int = MODULE_LINES_MAX) -> int:
    return max(0, len(path.read_text(encoding="utf-8").splitlines()) - most)


def functions(tree: ast.Module) -> dict[str, int]:
    """Return the lines of each function, by its first line and its name."""
    return {
        f"line {node.lineno}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def long_functions(tree: ast.Module) -> list[str]:
    return [name for name, lines in functions(tree).items() if lines > FUNCTION_LINES_MAX]


def p90(lengths: Iterable[int]) -> int:
    """Return the length that at most one of ten exceeds."""
    ordered = sorted(lengths)
    return ordered[-(len(ordered) // 10) - 1]


def test_nine_of_ten_functions_are_short() -> None:
    assert p90(lines for path in MODULES for lines in functions(tree_of(path)).values()) <= FUNCTION_LINES_P90_MAX


def test_a_long_function_is_found_and_one_of_ten_may_be_longer_than_the_others() -> None:
    source = "def fits():\n" + "    a = 1\n" * (FUNCTION_LINES_MAX - 1) + "async def long():\n" + "    a = 1\n" * 100
    assert functions(ast.parse(source)) == {"line 1: fits": 100, "line 101: long": 101}
    assert long_functions(ast.parse(source)) == ["line 101: long"]
    assert (p90([*[1] * 9, 99]), p90([*[1] * 8, 99, 99]), p90([*[1] * 8, 99])) == (1, 99, 99)


def vague_words(path: Path) -> set[str]:
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    return words & VAGUE_WORDS


def names_defined_twice(sources: Sources) -> dict[str, list[str]]:
    """Return the modules of each public class, and of each alias of types, that more than one defines."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, tree in sources.items():
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=defined):
                    found[defined].append(name)
                case ast.AnnAssign(target=ast.Name(id=defined), annotation=ast.Name(id="TypeAlias")):
                    found[defined].append(name)
                case _:
                    continue
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1 and not name.startswith("_")}


def test_a_name_means_one_thing() -> None:
    assert names_defined_twice(product()) == {}


def test_a_class_that_is_defined_twice_is_found() -> None:
    files = {"events/a.py": "class A: ...\nclass _B: ...", "events/b.py": "A: TypeAlias = int\nclass _B: ...\nC = 1"}
    assert names_defined_twice(planted(files)) == {"A": ["events/a.py", "events/b.py"]}


RULES: dict[str, tuple[Callable[[Path], object], list[Path]]] = {
    "imports point one way": (lambda path: imports_against_the_direction(tree_of(path), layer_of(path)), MODULES),
    "events import only what is pure": (impure_imports, EVENTS),
    "events call nothing impure": (impure_calls, EVENTS),
    "events depend on no global and no order of a set": (lambda path: dependence_on_the_process(tree_of(path)), EVENTS),
    "modules with a home are imported only there": (imports_away_from_home, MODULES),
    "a module holds one idea": (lines_too_many, MODULES),
    "the shell is read from top to bottom": (lambda path: lines_too_many(path, SHELL_LINES_MAX), [SHELL]),
    "a module is named for what it holds": (vague_words, MODULES),
    "a module opens with a docstring": (lambda path: not ast.get_docstring(tree_of(path)), MODULES),
    "functions fit on a page": (lambda path: long_functions(tree_of(path)), MODULES),
    "no error is swallowed": (lambda path: swallowed_errors(tree_of(path)), MODULES),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_module_keeps_to(rule: str) -> None:
    found_in, modules = RULES[rule]
    assert broken(found_in, modules) == {}


def into_events(tree: ast.Module) -> list[str]:
    return imports_against_the_direction(tree, "events")


@pytest.mark.parametrize(
    ("found_in", "source"),
    [
        *(
            (into_events, source)
            for source in (
                "import refold.stores.event_store",
                "from refold.actors import Actor",
                "from refold import stores",
                "from refold import AgentRuntime",
                "import refold",
                "from .errors import RefoldError",
                "def later():\n    from refold.scenarios.faults import Crash",
            )
        ),
        *(
            (dependence_on_the_process, source)
            for source in (
                "def count():\n    global calls\n    calls += 1",
                "for name in {'a', 'b'}:\n    names.append(name)",
                "names = [name for name in set(given)]",
                "names = list(frozenset(given))",
                "names = (*needed.intersection(given),)",
                "text = ', '.join({name for name in given})",
                "first = next(iter(set(a) - set(b)))",
            )
        ),
        *(
            (swallowed_errors, source)
            for source in (
                "try:\n    work()\nexcept ValueError:\n    pass",
                "for item in items:\n    try:\n        work(item)\n    except OSError:\n        continue",
                "try:\n    work()\nexcept KeyError:\n    ...",
                "with contextlib.suppress(Exception):\n    work()",
                "with suppress(OSError, BaseException):\n    work()",
            )
        ),
    ],
)
def test_what_breaks_a_rule_is_found(found_in: Callable[[ast.Module], list[str]], source: str) -> None:
    assert len(found_in(ast.parse(source))) == 1


@pytest.mark.parametrize(
    ("found_in", "source"),
    [
        (dependence_on_the_process, "names = tuple(sorted(needed.intersection(given)))\nknown = name in set(given)"),
        (swallowed_errors, "try:\n    work()\nexcept KeyError:\n    count += 1"),
        (swallowed_errors, "with suppress(FileNotFoundError):\n    path.unlink()"),
    ],
)
def test_what_keeps_to_a_rule_is_accepted(found_in: Callable[[ast.Module], list[str]], source: str) -> None:
    assert found_in(ast.parse(source)) == []
