"""The numbers to hold, printed and enforced: each row finds the places that count, and the table says how many may."""

import argparse
import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FILE_LINES = 500
FUNCTION_LINES = 60
MATCH_CASE_LINES = 12
PARAMETERS = 6

# The façade: there keywords are the interface.
FACADE = (
    "src/clew/agent/definition.py",
    "src/clew/agent/tools.py",
    "src/clew/app/",
    "src/clew/__init__.py",
    "src/clew/testing/crash.py",
)

BROAD = {"Exception", "BaseException"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Calls:
    """Where a port's method is called: `receiver.method(`, outside the folders that implement it or test it."""

    method: str
    receivers: tuple[str, ...]
    outside: tuple[str, ...] = ("src/clew/stores", "src/clew/models", "src/clew/testing")


MODEL_CALLS = Calls("stream", ("model", "_model"))
APPENDS = Calls("commit", ("store", "_store"))
CREATIONS = Calls("start", ("store", "_store"))


class Source:
    """One file of the tree, parsed once."""

    def __init__(self, root: Path, path: Path) -> None:
        self.name = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(ast.parse(self.text, self.name)))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def at(self, node: ast.stmt | ast.expr | ast.ExceptHandler, what: str) -> str:
        return f"{self.name}:{node.lineno} {what}"

    def under(self, *folders: str) -> bool:
        return any(self.name.startswith(f"{folder}/") for folder in folders)


class Tree:
    """The project's Python files: the library, and everything beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = ("src", "tools", "tests", "bench")
        paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
        self.sources = tuple(Source(root, path) for path in paths)
        self.library = tuple(source for source in self.sources if source.under("src/clew"))
        self.core = tuple(source for source in self.library if source.under("src/clew/core"))


def import_cycles(tree: Tree) -> Iterator[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    options = ["--contract", "cycles", "--config", str(tree.root / "pyproject.toml"), "--no-cache", "--no-logo"]
    linter = subprocess.run([*command, *options], cwd=tree.root / "src", capture_output=True, text=True, check=False)
    if linter.returncode != 0:
        yield linter.stdout + linter.stderr


def long_files(tree: Tree) -> Iterator[str]:
    for source in tree.sources:
        if (lines := len(source.text.splitlines())) > FILE_LINES:
            yield f"{source.name} {lines} lines"


def long_functions(tree: Tree) -> Iterator[str]:
    for source in tree.sources:
        for function in source.functions:
            flat = source.under("src/clew/core") and is_flat_match(function)
            if (lines := length(function)) > FUNCTION_LINES and not flat:
                yield source.at(function, f"{function.name} {lines} lines")


def length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_flat_match(function: Function) -> bool:
    """One `match` whose cases are all short, and few lines around it: a table written as code."""
    match [statement for statement in function.body if isinstance(statement, ast.Match)]:
        case [only]:
            cases = (sum(map(length, case.body)) for case in only.cases)
            return length(function) - length(only) <= MATCH_CASE_LINES and max(cases) <= MATCH_CASE_LINES
        case _:
            return False


def long_signatures(tree: Tree) -> Iterator[str]:
    for source in tree.library:
        if source.name.startswith(FACADE):
            continue
        for function in source.functions:
            given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            named = [parameter for parameter in given if parameter.arg not in ("self", "cls")]
            if len(named) > PARAMETERS:
                yield source.at(function, f"{function.name} takes {len(named)}")


def silent_excepts(tree: Tree) -> Iterator[str]:
    for source in tree.library:
        for node in source.nodes:
            match node:
                case ast.ExceptHandler(body=body) if all(map(says_nothing, body)):
                    yield source.at(node, "except that says nothing")
                case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress"), args=args):
                    if any(map(is_broad, args)):
                        yield source.at(node, "suppress of everything")
                case _:
                    pass


def says_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Continue() | ast.Expr(ast.Constant()):
            return True
        case _:
            return False


def broad_excepts(tree: Tree) -> Iterator[str]:
    for source in tree.library:
        for node in source.nodes:
            match node:
                # One that ends by raising again has caught nothing.
                case ast.ExceptHandler(body=[*_, ast.Raise(exc=None)]):
                    pass
                case ast.ExceptHandler(type=caught) if is_broad(caught):
                    yield source.at(node, "broad except")
                case _:
                    pass


def is_broad(caught: ast.expr | None) -> bool:
    match caught:
        case None:
            return True
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in BROAD
        case ast.Tuple(members):
            return any(map(is_broad, members))
        case _:
            return False


def public_names(tree: Tree) -> Iterator[str]:
    for source in tree.library:
        if source.name == "src/clew/__init__.py":
            for node in source.nodes:
                match node:
                    case ast.Assign(targets=[ast.Name("__all__")], value=value):
                        yield from ast.literal_eval(value)
                    case ast.AnnAssign(target=ast.Name("__all__"), value=ast.expr() as value):
                        yield from ast.literal_eval(value)
                    case _:
                        pass


def foreign_core_imports(tree: Tree) -> Iterator[str]:
    for source in tree.core:
        for node in source.nodes:
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            for module in modules:
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in ("clew", "msgspec"):
                    yield source.at(node, f"imports {module}")


def calls(pattern: Calls) -> Callable[[Tree], Iterator[str]]:
    def found(tree: Tree) -> Iterator[str]:
        for source in tree.library:
            if source.under(*pattern.outside):
                continue
            for node in source.nodes:
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr=method, value=ast.Name(receiver) | ast.Attribute(attr=receiver))
                    ) if method == pattern.method and receiver in pattern.receivers:
                        yield source.at(node, f"{receiver}.{method}(…)")
                    case _:
                        pass

    return found


@dataclass(frozen=True)
class Number:
    name: str
    at_most: int
    find: Callable[[Tree], Iterator[str]]
    at_least: int = 0


NUMBERS = (
    Number("import cycles", 0, import_cycles),
    Number(f"files over {FILE_LINES} lines", 0, long_files),
    Number(f"functions over {FUNCTION_LINES} lines", 0, long_functions),
    Number(f"parameters over {PARAMETERS} outside the façade", 0, long_signatures),
    Number("silent excepts", 0, silent_excepts),
    Number("broad excepts", 3, broad_excepts),
    Number("public names", 30, public_names, at_least=1),
    Number("third-party imports in core/ beside msgspec", 0, foreign_core_imports),
    Number("places that call a model", 1, calls(MODEL_CALLS), at_least=1),
    Number("places that append to a journal", 1, calls(APPENDS), at_least=1),
    Number("places that create a journal", 1, calls(CREATIONS), at_least=1),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path.cwd(), help="the tree to count in")
    parser.add_argument(
        "--places", action="store_true", help="name the places of every number, also of those that hold"
    )
    options = parser.parse_args()
    tree = Tree(options.root.resolve())
    red = 0
    for number in NUMBERS:
        places = list(number.find(tree))
        holds = number.at_least <= len(places) <= number.at_most
        red += not holds
        print(f"{'ok ' if holds else 'RED'} {len(places):4} of {number.at_most:2}  {number.name}")
        if options.places or not holds:
            print(*(f"          {place.strip()}\n" for place in places), sep="", end="")
    print("     held by `make test`: branch coverage of core/ 100 %")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
