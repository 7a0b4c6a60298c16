"""The tables of each database, as scripts."""

from pathlib import Path


def load(name: str) -> str:
    """The script that makes the tables of the present version."""
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")


def statements(script: str) -> list[str]:
    """The statements of a script, in order, without comments. None of ours holds a semicolon inside."""
    bare = "\n".join(line.partition("--")[0].rstrip() for line in script.splitlines())
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
