"""The picture in the README: `clew demo` as it looks on a terminal, written to docs/demo.svg."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

TARGET = Path("docs/demo.svg")
COLUMNS = 86
SHOWN = "A second pair of eyes"  # the first two acts are enough for a picture
END = re.compile(r"(\x1b\[[\d;]*m|\s)+$")
FOLDER = re.compile(r"clew-demo-\w+")
# Fonts of whoever looks: nothing is fetched from elsewhere.
FOREIGN = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


def recorded() -> str:
    """What the demo writes to a terminal, colours and all."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "clew", "demo"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        pieces: list[bytes] = []
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:
            pass  # what a terminal says when the last one has left it
        finally:
            os.close(ours)
    if demo.returncode != 0:
        raise SystemExit(f"clew demo ended with {demo.returncode}")
    return b"".join(pieces).decode().replace("\r\n", "\n")


def picture(text: str) -> str:
    told = END.sub("", text.partition(f"── {SHOWN}")[0])
    # In its own memory: what it prints is the picture, not a terminal.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(FOLDER.sub("clew-demo", told)))
        svg = console.export_svg(title="clew demo", unique_id="clew-demo")
    return FOREIGN.sub("", svg)


def main() -> int:
    TARGET.write_text(picture(recorded()), encoding="utf-8")
    print(f"{TARGET}, {TARGET.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
