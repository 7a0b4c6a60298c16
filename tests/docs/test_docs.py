"""Every fenced block of README.md, examples/README.md and docs/ does what its page says.

The blocks of a page are done in order, in one fresh folder that holds a copy of examples/. The language says how:

- `python`: runs, in one namespace for the page, and prints what its lines that begin with `#>` say, if it has any. If
  its first line is `# name.py` and nothing else, it is that file instead, which a later block has to use.
- `console`: what follows `$ ` (and `> `, where it goes on) is typed into one bash for the page; the lines below are
  what it prints. A command that fails is followed by `$ echo $?`.
- `json`, and `jsonl` line by line: parses.
- `sh`: sets up a machine; it is not run, and what it names must exist.
- `text`, `mermaid`, `sql`, `yaml`: left alone, and `toml`, unless it is a file as above. Any other language, or
  none, is an error.

`…` stands for anything in a line, and alone for any lines. Times, dates, process ids, made-up run ids and digests are
compared as if all were the same. `clew` and `python` are those of this environment; nobody has set CLEW_STORE.
"""

from pathlib import Path

import pytest

from tests.docs.reading import ROOT, read

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    read(page, tmp_path)
