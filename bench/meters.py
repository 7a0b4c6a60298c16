"""What can be read of this process and of the machine: bytes written, CPU, memory, the disk's mood."""

import os
import statistics
import time
from pathlib import Path


def written() -> int:
    """Bytes this process has handed to write(), whatever became of them."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def memory_mib(field: str = "VmHWM") -> float:
    """Not ru_maxrss, which a child inherits from its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1]) / 1024


def machine_cpu() -> float:
    """Seconds of CPU that everything on the machine has used."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(seconds: float, cores: float = 0.3) -> float:
    """Until others use less than so many cores, at most so long; what they use then."""
    deadline = time.monotonic() + seconds
    while True:
        before, at = machine_cpu(), time.monotonic()
        time.sleep(0.3)
        used = (machine_cpu() - before) / (time.monotonic() - at)
        if used < cores or time.monotonic() > deadline:
            return used


def fdatasync_us(folder: Path) -> float:
    """The median of 4 KiB appended and made durable: what the disk costs right now."""
    path = folder / "probe"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(40):
            begun = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begun) * 1e6)
    path.unlink()
    return statistics.median(taken)


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
