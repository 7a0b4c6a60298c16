"""What is shipped works alone: the wheel in an environment of its own, without the tree it was built from."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 300  # seconds: a build and an installation, on a machine that does other things as well


def ran(*command: object, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from nothing but it."""
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    [source] = (folder / "source").iterdir()
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel in it; what Clew depends on is lent by this one, unfetched."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=True)
    binaries = home / "bin"
    [wheel] = built.glob("*.whl")
    ran(binaries / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    [packages] = home.glob("lib/*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return binaries


def test_the_wheel_holds_the_package_and_says_that_it_is_typed(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "clew/py.typed",
        "clew/__main__.py",
        "clew/stores/schema/sqlite.sql",
        "clew/stores/queries/runs.sql",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "bench/", "docs/", "examples/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_alone_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    plain = {"PATH": os.defpath, "HOME": str(tmp_path)}
    where = ran(installed / "python", "-c", "import clew; print(clew.__file__)", cwd=tmp_path, environment=plain)
    assert Path(where.strip()).is_relative_to(installed.parent)
    told = ran(installed / "clew", "demo", "--json", cwd=tmp_path, environment=plain)
    assert json.loads(told)["paid"] == {"A-17": 1, "B-04": 1, "C-31": 1}


def test_the_command_and_the_module_tell_the_version_of_the_wheel(installed: Path, built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    expected = f"clew {wheel.name.split('-')[1]}"
    assert ran(installed / "clew", "--version", cwd=tmp_path).strip() == expected
    assert ran(installed / "python", "-m", "clew", "--version", cwd=tmp_path).strip() == expected
