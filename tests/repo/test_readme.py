"""The example on the front page runs as it stands, and again."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
ANSWER = "Sunny. Leave the umbrella."


def test_the_example_runs_and_a_second_time_only_remembers(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    # The second time its model has nothing to say: what is printed comes from the journal.
    (tmp_path / "again.py").write_text(
        re.sub(r"ScriptedModel\(\[.*?\]\)", "ScriptedModel([])", example), encoding="utf-8"
    )
    for program in ("example.py", "again.py"):
        command = [sys.executable, program]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip() == ANSWER
