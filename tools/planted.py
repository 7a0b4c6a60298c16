"""Each mistake planted in a user program is found by both type checkers, on its own line, and nothing else is."""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

MISTAKE = re.compile(r"#\s*(E\d+)\b")
MYPY_ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error:")


def mistakes(program: Path) -> dict[int, str]:
    """Line number to label, for each line that ends in a comment such as `# E3 wrong deps`."""
    lines = enumerate(program.read_text(encoding="utf-8").splitlines(), 1)
    return {number: found[1] for number, line in lines if (found := MISTAKE.search(line))}


def pyright_errors(program: Path) -> set[int]:
    # A copy in a project of its own: the programs' project leaves this one out, also when it is named.
    project = {"typeCheckingMode": "strict", "extraPaths": [str(program.parent)]}
    with TemporaryDirectory() as folder:
        shutil.copy(program, folder)
        config = Path(folder, "pyrightconfig.json")
        config.write_text(json.dumps(project), encoding="utf-8")
        options = ["--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
        command = [sys.executable, "-m", "pyright", *options]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(checked.stdout)
    found = [one for one in report["generalDiagnostics"] if one["severity"] == "error"]
    return {one["range"]["start"]["line"] + 1 for one in found}


def mypy_errors(program: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-pretty", program.name]
    checked = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    found = (MYPY_ERROR.match(line) for line in checked.stdout.splitlines())
    return {int(error["line"]) for error in found if error and error["file"] == program.name}


def differences(checker: str, planted: dict[int, str], found: set[int]) -> Iterable[str]:
    for line, label in planted.items():
        if line not in found:
            yield f"{checker} does not see {label} on line {line}"
    for line in sorted(found - planted.keys()):
        yield f"{checker} reports line {line}, where nothing is planted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    program: Path = parser.parse_args().program.resolve()
    planted = mistakes(program)
    wrong = [
        *differences("pyright", planted, pyright_errors(program)),
        *differences("mypy", planted, mypy_errors(program)),
    ]
    if not planted:
        wrong.append("no mistake is planted: mark its line with a comment, # E1")
    print(*wrong or [f"{len(planted)} planted mistakes, each seen by pyright and mypy"], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
