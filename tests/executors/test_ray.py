"""Steps on a Ray cluster of several nodes on one machine: kills and lost nodes lose no step."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant.bench import Store
from calibrant.cli import run
from calibrant.errors import InputError
from calibrant.executors import execute
from calibrant.executors.cluster import RayCluster
from calibrant.papers import PAPERS
from tests.bench.test_steps import PLAIN
from tests.executors.test_executors import Note, call, wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed, so no cluster is tested")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Connected once, so that tests share the cluster's processes, which take seconds to import torch."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(made.address, log_to_driver=False)
    yield made
    assert ray.is_initialized(), "a connection that was there before is left alone"
    ray.shutdown()
    made.shutdown()


def test_steps_run_in_order_and_a_failure_costs_only_what_needs_it(cluster: Any, tmp_path: Path) -> None:
    steps = [
        Note(tmp_path, "a"),
        Note(tmp_path, "b", ("a",)),
        Note(tmp_path, "wrong", how="fails"),
        Note(tmp_path, "after", ("wrong",)),
    ]
    found = {o.step.key: o for o in execute(steps, RayCluster(cluster.address))}
    assert {k: o.ending for k, o in found.items()} == {"a": "done", "b": "done", "wrong": "failed", "after": "skipped"}
    assert isinstance(found["wrong"].error, InputError) and found["wrong"].why == "it was asked to"


def test_a_killed_worker_and_a_lost_node_lose_no_step(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    steps = [Note(tmp_path, f"s{i}", until="go") for i in range(6)]
    steps.append(Note(tmp_path, "once", how="dies once"))

    def disturb() -> None:
        wait_for(lambda: sum(s.runs() for s in steps) >= 3 and steps[0].runs() == 1)
        pid = int((tmp_path / "s0.log").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)
        (tmp_path / "go").touch()

    other = threading.Thread(target=disturb)
    other.start()
    found = {o.step.key: o.ending for o in execute(steps, RayCluster(cluster.address))}
    other.join()
    assert found == {s.key: "done" for s in steps}
    assert steps[0].runs() >= 2 and steps[-1].runs() >= 2, "each was tried again"
    assert all(s.done() for s in steps)


def test_a_killed_driver_is_followed_by_another(cluster: Any, tmp_path: Path) -> None:
    first = call(tmp_path, cluster.address, 2)
    try:
        wait_for(lambda: all(Note(tmp_path, f"s{i}").done() for i in range(2)))
    finally:
        first.kill()
        first.communicate(timeout=60)
    done = [i for i in range(6) if Note(tmp_path, f"s{i}").done()]
    assert done == [0, 1]
    steps = [Note(tmp_path, f"s{i}") for i in range(6)]
    assert {o.ending for o in execute(steps, RayCluster(cluster.address))} == {"done"}
    assert all(s.done() for s in steps) and all(steps[i].runs() == 1 for i in done)


def test_rows_are_measured_on_a_cluster(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PAPERS, "test", replace(PAPERS["rc"], name="test", experiments=(PLAIN,)))
    words = ["bench", "run", "test", "--seeds", "1", "--epochs", "2", "--device", "cpu"]
    assert run([*words, "--ray", cluster.address]) == 0
    assert run([*words, "--results", "here", "--runs", "runs-here"]) == 0
    [far], [near] = (list(Store(tmp_path / name).cells()) for name in ("results", "here"))
    assert far.measured == near.measured and far.key == near.key


def test_a_folder_is_audited_on_a_cluster_to_the_digit(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for part in range(4):
        z = rng.normal(0, 2, (500, 5)).astype(np.float32)
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        (tmp_path / "parts").mkdir(exist_ok=True)
        pq.write_table(pa.table({"label": y, "logits": list(z)}), tmp_path / "parts" / f"{part}.parquet")
    words = ["audit", str(tmp_path / "parts"), "--json"]
    assert run([*words, "--stream"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert run([*words, "--ray", cluster.address]) == 0
    assert json.loads(capsys.readouterr().out) == alone
    assert run([*words, "--ray", cluster.address, "--exact"]) == 2
    assert "--workers" in capsys.readouterr().err


def test_an_address_without_a_cluster_is_an_error() -> None:
    with pytest.raises(InputError, match=r"--ray 127\.0\.0\.1:1: no Ray cluster"):
        RayCluster("127.0.0.1:1")
