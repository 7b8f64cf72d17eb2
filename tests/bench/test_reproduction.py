"""The papers' tables beside our cells: which cells are combined, what they are compared with, what is printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from calibrant.bench import Cell
from calibrant.bench.reproduction import Entry, entries_of, gpu_minutes, judged
from calibrant.bench.seeds import groups, value
from calibrant.bench.table_text import FORMATS, scale_words, text_of
from calibrant.bench.tables import lines
from calibrant.cli import run
from calibrant.papers.reported import AS_TRAINED, CLAIMS, TABLES, Claim, Pair, Source
from calibrant.papers.reported.table import table

TABLE = table(
    "t/table1",
    "Table 1",
    "made up",
    "ece% nll temperature:temperature",
    """
    # A & B
    base   | table1/base        | 6.43±0.22  1.0 2.5
    better | table1/better      | 2.43±0.20▼ 0.5 1.0
    scaled | table1/base@scaled | 2.43       1.0 -
    # C
    base   | -                  | 1.0 1.0 1.0
    better | -                  | 2.0 2.0 1.0
    """,
    oracle="chosen on test",
)


def cell(name: str, seed: int, ece: float, *, scale: str = "paper", note: str = "", **settings: Any) -> Cell:
    return Cell(
        experiment=f"t/table1/{name}",
        seed=seed,
        scale=scale,
        key=f"{name}{seed}{scale}{sorted(settings.items())}",
        status="done",
        settings={"recipe": {"seed": seed, "engine": f"of seed {seed}", **settings}},
        measured={AS_TRAINED: {"ece": ece, "nll": 10 * ece}, "scaled": {"ece": ece / 2}},
        note=note,
        seconds=60.0,
        device="GPU",
        extras={"temperature": 2.0, "curve": {"nll": [0.9, 0.8, 0.7]}},
    )


def three(name: str, ece: float, **options: Any) -> list[Cell]:
    return [cell(name, seed, ece + step, **options) for seed, step in enumerate((-0.001, 0.0, 0.001))]


def entry(entries: list[Entry], row: str, metric: str = "ece", block: str = "A & B") -> Entry:
    [found] = [e for e in entries if (e.block, e.row, e.column.metric) == (block, row, metric)]
    return found


def test_rows_of_a_block_are_judged_against_its_first() -> None:
    cells = [*three("base", 0.06), *three("better", 0.03)]
    found = entries_of(TABLE, cells)
    first, better, scaled = (entry(found, row) for row in ("base", "better", "scaled"))
    assert first.verdict is None and first.measured is not None and first.measured.value == pytest.approx(0.06)
    assert better.verdict is not None and better.verdict.word == "reproduced"
    assert better.verdict.reported == pytest.approx(-0.04) and better.verdict.mean == pytest.approx(-0.03)
    assert scaled.verdict is not None and scaled.verdict.seeds == 3  # of the same cells, another variant
    assert entry(found, "scaled", "nll").verdict is None  # the paper reports no difference
    assert entry(found, "base", "temperature").measured is not None
    idle = entry(found, "better", block="C")
    assert idle.measured is None and idle.verdict is not None and idle.verdict.word == "not run"


def test_other_scales_and_settings_stand_apart_and_smoke_nowhere() -> None:
    cells = [
        *three("base", 0.06),
        *three("base", 0.08, weight_decay=0.5),
        *three("better", 0.03, weight_decay=0.5),
        *three("base", 0.2, scale="20 epochs"),
        *three("better", 0.1, scale="20 epochs"),
        *three("base", 0.3, scale="smoke"),
    ]
    cells = [c if c.settings["recipe"].get("weight_decay") else _with(c, weight_decay=0.0) for c in cells]
    found = [(g.scale, g.settings) for g in groups(cells, {c.experiment for c in cells})]
    assert found == [("paper", "weight_decay=0.0"), ("paper", "weight_decay=0.5"), ("20 epochs", "")]
    rows = [e for e in entries_of(TABLE, cells) if e.row == "better" and e.column.metric == "ece" and e.measured]
    assert [e.verdict.word for e in rows if e.verdict] == ["reproduced", "other scale"]
    assert rows[0].verdict and rows[0].verdict.mean == pytest.approx(-0.05)  # against the base of its own settings
    assert rows[1].verdict and rows[1].verdict.leaning == "as in the paper"


def _with(found: Cell, **settings: Any) -> Cell:
    return Cell(**{**vars(found), "settings": {"recipe": {**found.settings["recipe"], **settings}}})


def test_a_printed_table_has_every_caveat_and_the_rule() -> None:
    cells = [
        *three("base", 0.06, note="schedule ours"),
        *three("better", 0.03, note="schedule ours; 3 members instead of 5"),
    ]
    text = text_of(TABLE, entries_of(TABLE, cells))
    shown = FORMATS["text"](text)
    assert "6.43±0.22%" in shown and "2.43±0.20%▼" in shown and "ece: not run: C" in shown
    assert (
        "\nschedule ours\n(a) 3 members instead of 5\noracle: chosen on test\n" in shown and "docs/claims.md" in shown
    )
    [line] = [x for x in shown.splitlines() if x.startswith("  better") and "reproduced" in x and "pp" in x]
    assert "(a)" in line and "−3.00 pp [" in line
    assert "| **A & B** |" in FORMATS["markdown"](text)
    tex = FORMATS["latex"](text)
    assert r"\textbf{A \& B} \\" in tex and r"6.43$\pm$0.22\%" in tex and tex.count(r"\begin{tabular}") == 3


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ("20of200", "20 of 200 epochs"),
        ("30of200b512w1", "30 of 200 epochs, batch 512, warm-up 1"),
        ("30of200b512-resnet29v2", "30 of 200 epochs, batch 512, resnet29v2"),
        ("small", "small"),
    ],
)
def test_scales_in_words(scale: str, words: str) -> None:
    assert scale_words(scale) == words


def test_a_claim_is_judged_by_its_pairs() -> None:
    claim = Claim(
        "t/claim",
        "§1",
        "better is better",
        "it is",
        (
            Pair("a", Source("t/table1/better"), Source("t/table1/base"), "ece", -1, -0.04),
            Pair("b", Source("t/table1/better"), Source("t/table1/base"), "ece", -1, unlike="other data"),
            Pair(
                "c",
                Source("t/table1/base", "extras/curve/nll/1"),
                Source("t/table1/base", "extras/curve/nll/0"),
                "nll",
                -1,
            ),
            Pair("d", Source("t/table1/none"), Source("t/table1/base"), "ece", -1),
        ),
    )
    found = judged(claim, [*three("base", 0.06), *three("better", 0.03)])
    assert [j.verdict.word for j in found] == ["reproduced", "other scale", "reproduced", "not run"]
    assert found[1].caveats == ("other data",) and found[2].verdict.mean == pytest.approx(-0.1)
    assert gpu_minutes(c for j in found for c in j.cells) == pytest.approx(6)  # shared cells count once


def test_numbers_in_extras_are_found_by_path() -> None:
    found = cell("base", 0, 0.1)
    found = Cell(**{**vars(found), "extras": {"a": [{"b": {"value": 3}}], "c": "text"}})
    assert value(found, Source("", "extras/a/0/b"), "ece") == 3.0
    for path in ("a/1/b", "a/0/x", "c", "c/d", "e/f"):
        assert value(found, Source("", f"extras/{path}"), "ece") is None


def test_every_claim_names_measurable_experiments() -> None:
    for name, claim in CLAIMS.items():
        assert claim.pairs and claim.name == name and claim.says.endswith((".", "table."))
        assert len({(p.label, p.metric, p.method, p.baseline) for p in claim.pairs}) == len(claim.pairs)
        assert all(p.reported is None or p.reported * p.sign > 0 for p in claim.pairs)


def test_bench_show_prints_the_papers_tables_from_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "show", "pep/table2", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)["tables"]
    assert shown["table"] == "pep/table2" and len(shown["rows"]) >= sum(
        len(r.numbers) for r in TABLES["pep/table2"].rows
    )
    [row] = [r for r in shown["rows"] if (r["block"], r["row"], r["metric"]) == ("CIFAR-10, CNN", "PEP", "nll")]
    assert row["reported"] == {"value": 0.982, "deviation": 0.02, "mark": None}
    assert row["verdict"]["word"] == "reproduced" and row["verdict"]["low"] < row["verdict"]["high"] < 0
    assert run(["bench", "show", "rc/table2", "--format", "markdown"]) == 0  # measured by the cells of Table 1
    assert "**20 Newsgroups, 1-D CNN**" in capsys.readouterr().out
    for wrong in ("rc/tabel1", "nope"):
        assert run(["bench", "show", wrong]) == 2
    assert run(["bench", "show", "rc", "--format", "html"]) == 2
    assert "known: latex, markdown, text" in capsys.readouterr().err


def test_of_two_equal_cells_of_one_seed_the_one_with_more_numbers_counts() -> None:
    few, many = (
        Cell("a/t/x", 0, "paper", key, "done", {"recipe": {"seed": 0}, **more}, {AS_TRAINED: numbers})
        for key, more, numbers in (
            ("b", {"tuned_on": "all"}, {"nll": 0.5}),
            ("a", {}, {"nll": 0.4, "ece": 0.1}),
        )
    )
    for cells in ([few, many], [many, few]):
        [group] = groups(cells, ["a/t/x"])
        assert group.runs["a/t/x"] == {0: many}
        assert {line.metric: line.mean for line in lines(cells)} == {"nll": 0.4, "ece": 0.1}
