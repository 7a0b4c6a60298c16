"""The reader of the pages is itself seen to find each way in which a page can be wrong."""

from pathlib import Path

import pytest

from tests.docs.alike import difference
from tests.docs.blocks import Block, PageError, blocks, commands
from tests.docs.reading import read

FINE = """\
# A page

```python
# greet.py
def greet(name):
    return f"Hello {name}"
```

```python
from greet import greet

print(greet("Ada"))
print("at once")
#> Hello Ada
#> at …
```

```python
word = greet("again")  # the namespace is that of the page
print(word)
```

```console
$ python -c 'import greet; print(greet.greet("Oslo"))'
Hello Oslo
$ cat > two.txt <<EOF
> one
> two
> EOF
$ cat two.txt; echo "took 12 ms"
one
two
took 3.40 s
$ ls examples/first_agent.py missing.txt
…
examples/first_agent.py
$ echo $?
2
$ sh -c 'echo last words; kill -9 $$'
last words
Killed
$ echo $?
137
$ sleep 600 &
$ kill %1; wait %1
$ echo $?
143
$ seq 100
1
…
100
```

- in a list

  ```json
  {"a": [1, 2]}
  ```

```jsonl
{"a": 1}
{"a": 2}
```

```sh
git clone somewhere && cd somewhere  # a remark
cd somewhere
python -m venv .venv
. .venv/bin/activate
pip install clew
make test
```

```text
whatever
```
"""


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_page_that_is_right_is_read_to_its_end(tmp_path: Path) -> None:
    read(page(tmp_path, FINE), tmp_path)


WRONG = [
    pytest.param("```\nx\n```", "page.md:1: a block in no language", id="no-language"),
    pytest.param("```pyhton\nx\n```", "page.md:1: a block in pyhton", id="a-slip-in-the-language"),
    pytest.param("\n```python\nx = 1", "page.md:2: a block that never ends", id="no-end"),
    pytest.param("```python\n# app.py\nx = 1\n```", "page.md:1: nothing below uses app.py", id="a-file-never-used"),
    pytest.param("```python\n1 / 0\n```", 'page.md", line 2', id="python-raises"),
    pytest.param("```python\nprint(1)\n#> 2\n```", "+1", id="python-prints-otherwise"),
    pytest.param("```python\nprint(1)\nprint(2)\n#> 1\n```", "+2", id="python-prints-more"),
    pytest.param("```console\nls\n```", "page.md:2: a console block begins with a command", id="no-prompt"),
    pytest.param("```console\n$ echo a\nb\n```", "page.md:2: $ echo a", id="another-output"),
    pytest.param("```console\n$ echo a\n```", "+a", id="output-left-out"),
    pytest.param("```console\n$ true\na\n```", "-a", id="output-made-up"),
    pytest.param("```console\n$ sh -c 'exit 3'\n$ true\n```", "ends with exit code 3", id="failure-passed-over"),
    pytest.param("```console\n$ sh -c 'exit 3'\n$ echo $?\n4\n```", "+3", id="another-exit-code"),
    pytest.param("```console\n$ exit 0\n```", "ended the shell", id="the-shell-is-left"),
    pytest.param("```json\n{'a': 1}\n```", "page.md:1: this is no JSON", id="no-json"),
    pytest.param('```jsonl\n{"a": 1}\n{\n```', "page.md:1: this is no JSON", id="no-json-lines"),
    pytest.param("```sh\nmake tset\n```", "page.md:2: there is no target 'tset'", id="no-target"),
    pytest.param("```sh\npip install 'clew[redis]'\n```", "there is no extra ['redis']", id="no-extra"),
    pytest.param("```sh\nrm -r x\n```", "page.md:2: a `sh` block is for setting up", id="not-setting-up"),
]


@pytest.mark.parametrize(("text", "told"), WRONG)
def test_a_page_that_is_wrong_is_told_so(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises((AssertionError, PageError)) as raised:
        read(page(tmp_path, text), tmp_path)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        pytest.param("  +4 ms ■ turn 1: 0 ms", "+1.20 s ■ turn 1: 3 min 2 s", id="times"),
        pytest.param("a  0 s ago  b", "a  12 min ago b", id="ages-and-columns"),
        pytest.param("at 2026-11-19 06:46:09", "at 2031-01-01 00:00:00", id="dates"),
        pytest.param("run run_01m7s9h2rje2rbd7kmm4p6fg6v", "run run_01m7s9h2rwe9prr6mh2rhygqwe", id="made-up-ids"),
        pytest.param("by worker-1 (process 1 on laptop)", "by worker-31 (process 31 on ci.local)", id="processes"),
        pytest.param("Killed", "bash: line 3:  812 Killed                  python app.py", id="a-kill"),
        pytest.param('{"at": 1795070769693666}', '{"at": 2}', id="times-in-json"),
        pytest.param("one … three", "one two three", id="anything"),
    ],
)
def test_what_no_page_can_know_is_no_difference(said: str, printed: str) -> None:
    assert difference([said], [printed]) == ""


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        pytest.param(["1 turn"], ["2 turns"], id="a-count"),
        pytest.param(["oslo-1 done"], ["oslo-2 done"], id="a-name"),
        pytest.param(["a …"], ["a b", "c"], id="a-line-more"),
        pytest.param(["…", "z"], ["a", "b"], id="not-what-follows"),
        pytest.param(["a.c"], ["abc"], id="no-pattern"),
    ],
)
def test_what_a_page_can_know_is_a_difference(said: list[str], printed: list[str]) -> None:
    assert difference(said, printed) != ""


def test_lines_that_look_like_a_continuation_are_output_once_there_is_some() -> None:
    block = Block("page.md", 1, "console", "$ python talk.py\nhello\n> and on\n$ cat <<EOF\n> a\n> EOF\na")
    assert [(command.text, command.printed) for command in commands(block)] == [
        ("python talk.py", ("hello", "> and on")),
        ("cat <<EOF\na\nEOF", ("a",)),
    ]


def test_a_fence_within_a_longer_fence_is_text() -> None:
    found = list(blocks("page.md", "````text\n```python\n1 / 0\n```\n````\n```json\n1\n```"))
    assert [(block.language, block.text) for block in found] == [("text", "```python\n1 / 0\n```"), ("json", "1")]
