"""Every benchmark starts as a module, with `--help`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EACH = """
import contextlib, io, json, os, runpy, sys
failed, started = {}, 0
for name in sorted(f[:-3] for f in os.listdir("benchmarks") if f.endswith(".py")):
    if "__main__" not in open(f"benchmarks/{name}.py", encoding="utf-8").read():
        continue
    for other in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
        del sys.modules[other]
    sys.argv = [name, "--help"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        failed[name] = "did not stop at --help"
    except SystemExit as stop:
        if stop.code not in (0, None) or "usage" not in said.getvalue():
            failed[name] = f"exit {stop.code}"
    except Exception as error:
        failed[name] = repr(error)
    started += 1
print(json.dumps({"failed": failed, "started": started}))
"""


def test_every_benchmark_starts() -> None:
    done = subprocess.run([sys.executable, "-c", EACH], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {} and found["started"] > 15


def test_every_command_that_docs_name_exists() -> None:
    named = set()
    for path in [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        named |= set(re.findall(r"python -m benchmarks\.(\w+)", path.read_text("utf-8")))
    assert len(named) > 10
    for name in named - {"NAME"}:
        assert "__main__" in (ROOT / "benchmarks" / f"{name}.py").read_text("utf-8"), name
