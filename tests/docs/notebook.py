"""The Python blocks of a page that are no files, one after the other in one namespace, as in a notebook.

As a program it is that namespace: it reads a block a line, as JSON, and answers with what the block printed.
"""

import io
import json
import subprocess
import sys
import types
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path


class Notebook:
    """The process with the namespace."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = folder.with_suffix(".errors")
        with self._errors.open("wb") as errors:
            self._python = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=dict(environment),
                text=True,
                encoding="utf-8",
            )

    def run(self, text: str, file: str, line: int) -> list[str]:
        """What a block prints. Raises AssertionError with its traceback, which names the place on the page."""
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"text": "\n" * line + text, "file": file}) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        if not answer:
            self._python.wait()
            raise AssertionError(self._errors.read_text(encoding="utf-8"))
        printed: str = json.loads(answer)
        return printed.splitlines()

    def close(self) -> None:
        self._python.kill()
        self._python.wait()
        for pipe in (self._python.stdin, self._python.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.unlink(missing_ok=True)


def serve() -> None:
    """The namespace is that of a program, `__main__`; modules are looked for in the folder first."""
    sys.path[0] = ""
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page
    for request in sys.stdin:
        block = json.loads(request)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block["text"], block["file"], "exec"), vars(page))
        sys.stdout.write(json.dumps(printed.getvalue()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
