"""Peak memory and speed of a streamed audit on generated data.

    python -m benchmarks.streaming --rows 10000000 --classes 10 [--workers 2] [--exact]

Prints one JSON object: seconds, rows per second, and the peak resident memory of the auditing process in MiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.side_by_side import options

AUDIT = """
import json, sys, time
from pathlib import Path
from calibrant.cli import run

start = time.perf_counter()
code = run(sys.argv[1:])
seconds = time.perf_counter() - start
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps({"seconds": round(seconds, 1), "peak_mib": round(peak)}), file=sys.stderr)
sys.exit(code)
"""


def make(folder: Path, rows: int, classes: int, part: int) -> None:
    """Write parts of float32 logits that are overconfident: their labels follow a softer softmax."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for i, start in enumerate(range(0, rows, part)):
        n = min(part, rows - start)
        z = rng.standard_normal((n, classes), dtype=np.float32) * 4
        y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), classes)
        pq.write_table(pa.table({"label": y, "logits": lists}), folder / f"part-{i:05}.parquet", row_group_size=1 << 18)


def main() -> None:
    asked = options(__doc__, rows=5_000_000, classes=10, part=1_000_000, workers=1, exact=False)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        make(Path(folder), asked.rows, asked.classes, asked.part)
        made = time.perf_counter() - began
        argv = ["audit", folder, "--json", "--stream", "--workers", str(asked.workers)]
        argv += ["--exact"] if asked.exact else []
        done = subprocess.run([sys.executable, "-c", AUDIT, *argv], capture_output=True, text=True, check=True)
    (report,) = json.loads(done.stdout)
    found = json.loads(done.stderr.splitlines()[-1])
    found["rows"], found["classes"] = report["n"], report["k"]
    found["rows_per_second"] = round(report["n"] / found["seconds"])
    found["made_in_seconds"] = round(made, 1)
    found["bounds"] = {k: v for k, v in report["extras"]["stream"]["bounds"].items() if v > 0}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
