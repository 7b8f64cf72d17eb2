"""Every benchmark starts as a script and as a module, from any folder and without the project on the path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EACH = """
import contextlib, io, json, os, runpy, sys
root, folder = sys.argv[1:]
path, failed, started = list(sys.path), {}, 0
for name in sorted(f[:-3] for f in os.listdir(folder) if f.endswith(".py")):
    if "__main__" not in open(f"{folder}/{name}.py", encoding="utf-8").read():
        continue
    for how in ("script", "module"):
        sys.path[:] = [folder if how == "script" else root, *path]
        for other in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
            del sys.modules[other]
        sys.argv = [name, "--help"]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                if how == "script":
                    runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
                else:
                    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
            failed[f"{name} as a {how}"] = "did not stop at --help"
        except SystemExit as stop:
            if stop.code not in (0, None) or "usage" not in said.getvalue():
                failed[f"{name} as a {how}"] = f"exit {stop.code}"
        except Exception as error:
            failed[f"{name} as a {how}"] = repr(error)
        started += 1
print(json.dumps({"failed": failed, "started": started}))
"""


def test_every_benchmark_starts_as_a_script_and_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EACH, str(ROOT), str(ROOT / "benchmarks")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == {}
    assert found["started"] > 30


def test_what_is_imported_later_is_found_by_a_script_too() -> None:
    """A `from benchmarks…` inside a function fails only when it runs: the path must stand before it."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        text = path.read_text("utf-8")
        if "__main__" in text and "from benchmarks" in text:
            assert "sys.path.insert(0, str(Path(__file__).resolve().parents[1]))" in text, path.name
