"""The numbers of an audit as data, and two audits side by side."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console

from leakmeter.errors import LeakmeterError
from leakmeter.federated.defenses.base import Guarantee
from leakmeter.judge import Evidence, Provenance, Results, judge
from leakmeter.measure import Interval, difference, excess, share
from leakmeter.report import compare, show_comparison, write_results
from leakmeter.report.export import PER_IMAGE, table
from test_report import PROVENANCE, sample, scored
from test_report_matrix import audit, configured, row, utility

PAGE = Path(__file__).parents[1] / "docs" / "results.md"


def results(*evidence: Evidence, provenance: Provenance = PROVENANCE) -> Results:
    return judge(evidence, provenance)


def leakage(found: Results) -> list[tuple[str, float]]:
    """What leaked of each configuration, if anything could be measured."""
    return [(each.label, each.leak.share) for each in found.measured if each.leak is not None]


@pytest.fixture(scope="module")
def matrix() -> Results:
    return judge(*audit())


# Shares


def test_difference_of_shares_is_newcombes() -> None:
    # Newcombe 1998, table II, example (a), 56/70 - 48/80, method 10.
    found = difference(share(56, 70), share(48, 80))
    assert found.mean == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


@pytest.mark.parametrize(("hits", "baseline"), [(0, 0), (10, 10), (10, 0), (0, 10), (3, 1)])
def test_excess_stays_inside_what_is_possible(hits: int, baseline: int) -> None:
    found = excess(hits, baseline, 10)
    assert -1 <= found.low <= found.mean <= found.high <= 1
    assert found.low < found.high
    assert found.mean == pytest.approx((hits - baseline) / 10)


# The files


def test_json_comes_back_as_it_went(matrix: Results, tmp_path: Path) -> None:
    write_results(matrix, tmp_path)
    assert Results.load(tmp_path) == matrix
    assert Results.load(tmp_path / "results.json") == matrix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.csv", "results.json"]


def test_results_hold_the_counts_with_their_intervals(matrix: Results) -> None:
    evidence, _ = audit()
    first = matrix.configurations[0].attacks[0]
    assert first.attack == "sme"
    assert first.recognized is not None
    assert (first.recognized.hits, first.recognized.total) == (9, 10)
    assert (first.recognized.low, first.recognized.high) == share(9, 10)[1:]
    assert first.leakage is not None
    assert first.leakage.share == pytest.approx(0.8)
    assert first.clients[0].finding == evidence[0].finding


def test_csv_has_a_row_per_image(tmp_path: Path) -> None:
    runs = [sample("sme", client) for client in (0, 1)]
    write_results(judge(runs, PROVENANCE), tmp_path)
    text = (tmp_path / "results.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == PER_IMAGE
    assert len(rows) == 8
    finding = runs[1].finding
    assert finding is not None
    last = rows[-1]
    assert (last["attack"], last["client"], last["image"]) == ("sme", "1", "3")
    assert float(last["psnr"]) == finding.scores.psnr[3]
    assert float(last["baseline_mse"]) == finding.baseline.mse[3]
    assert last["recognized"] == str(finding.scores.recognized[3]).lower()
    assert last["lpips"] == ""


def test_csv_has_lpips_where_it_was_measured() -> None:
    run = scored(1, 2)
    assert run.finding is not None
    scores = run.finding.scores.model_copy(update={"lpips": [0.25, 0.5]})
    measured = replace(run, finding=run.finding.model_copy(update={"scores": scores}))
    rows = list(csv.DictReader(io.StringIO(_table(measured))))
    assert [each["lpips"] for each in rows] == ["0.25", "0.5"]
    assert [each["baseline_lpips"] for each in rows] == ["", ""]


def _table(*evidence: Evidence) -> str:
    return table(results(*evidence))


def test_any_label_survives_the_csv() -> None:
    label = 'a "quoted", odd\nlabel'
    found = list(csv.reader(io.StringIO(_table(replace(scored(1, 2), attack=label)))))
    assert [each[3] for each in found[1:]] == [label, label]


def test_without_truth_there_are_no_scores() -> None:
    found = results(sample(truth=False))
    (configuration,) = found.configurations
    assert configuration.level == "not measured"
    assert configuration.attacks[0].recognized is None
    assert configuration.attacks[0].clients[0].finding is None
    assert leakage(found) == []
    assert _table(sample(truth=False)).count("\n") == 1


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    run = scored(1, 2)
    match = run.found.history["match"].clone()
    match[-1] = math.nan
    odd = replace(run, found=replace(run.found, history={"loss": match, "match": match}))
    endless = row("noise", guarantee=Guarantee(math.inf, math.inf, 1e-5))
    provenance = replace(PROVENANCE, configurations=(endless,))
    write_results(judge([configured(odd, "noise")], provenance), tmp_path)
    found = Results.load(tmp_path).configurations[0]
    assert found.attacks[0].clients[0].match is None
    assert found.guarantee is not None
    assert found.guarantee.prv is None


def test_leakage_is_that_of_the_strongest_attack_beyond_its_baseline(matrix: Results) -> None:
    assert leakage(matrix) == [("none", pytest.approx(0.8)), ("top_k", 0.0), ("soteria", -0.1)]
    assert results(scored(1, 10, 3)).above(0.0) == []
    ((label, leaked),) = matrix.above(0.5)
    assert label == "none"
    assert leaked == pytest.approx(0.8)


def test_what_is_picked_out_of_line_ups_leaks_too() -> None:
    run = scored(0, 10)
    assert run.finding is not None
    missed = run.finding.baseline.model_copy(update={"reidentified": [True] * 3 + [False] * 7})
    one = run.finding.scores.model_copy(update={"psnr": [30.0] + [10.0] * 9})
    for scores in (run.finding.scores, one):  # one that is recognized besides makes it no less
        finding = run.finding.model_copy(update={"scores": scores, "baseline": missed})
        ((label, share),) = leakage(results(replace(run, finding=finding)))
        assert label == "none"
        assert share == pytest.approx(0.7)


# Broken files


def broken(path: Path, *change: Any) -> None:
    """``results.json`` with another value at the end of a path of keys."""
    *keys, last, value = change
    content = json.loads(judge(*audit()).model_dump_json())
    place = content
    for key in keys:
        place = place[key]
    place[last] = value
    path.write_text(json.dumps(content))


FIRST = ("configurations", 0, "attacks", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version", 3), r"version is 3, this leakmeter reads 2: run the audit again"),
        (("parameters", "many"), r"parameters: input should be a valid integer"),
        (("color", "red"), r"color: unknown field"),
        (("configurations", 0, "level", "safe"), r"configurations\.0\.level: unknown value 'safe'"),
        ((*FIRST, "recognized", "hits", 11), r"recognized: hits exceed total"),
        ((*FIRST, "clients", 0, "finding", "scores", "psnr", [1.0]), r"one value per image"),
        (("configurations", 1, "label", "none"), r"configurations: 'none' is there twice"),
        (("configurations", 0, "attacks", 1, "attack", "sme"), r"none: 'sme' is there twice"),
    ],
)
def test_broken_fields_are_named(change: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    broken(path, *change)
    with pytest.raises(LeakmeterError, match=message) as caught:
        Results.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "has no version"),
        (b"{}", "has no version"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(LeakmeterError, match=message):
        Results.load(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LeakmeterError, match=r"cannot read .*results\.json"):
        Results.load(tmp_path)
    with pytest.raises(LeakmeterError, match=r"cannot write .*results\.json"):
        write_results(results(scored(1, 2)), tmp_path / "nowhere")


# The documentation


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """``model`` and all that its fields hold."""
    yield model
    for field in model.model_fields.values():
        for inner in (field.annotation, *_arguments(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from models(inner)


def _arguments(annotation: Any) -> Iterator[Any]:
    for inner in getattr(annotation, "__args__", ()):
        yield inner
        yield from _arguments(inner)


def test_every_field_and_column_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    fields = {name for model in models(Results) for name in model.model_fields}
    assert {"prv", "test_images", "label_accuracy", "hits", "labels_known"} <= fields
    for name in fields | set(PER_IMAGE):
        assert re.search(rf"`\"?{name}\"?`|\"{name}\"", text), name


# Two audits


def test_the_same_audit_cannot_be_told_apart(matrix: Results) -> None:
    found = compare(matrix, matrix)
    assert len(found.rows) == 6
    assert (found.only_before, found.only_after, found.differences) == ((), (), ())
    assert {each.trend for each in found.rows} == {"cannot be told apart"}
    assert all(each.change.mean == 0 for each in found.rows)
    assert found.sentence == "Leakage cannot be told apart in all 6 comparisons."


@pytest.mark.parametrize(
    ("before", "after", "trend"),
    [
        (10, 0, "fell"),
        (0, 10, "rose"),
        (6, 5, "cannot be told apart"),
        (0, 1, "cannot be told apart"),
    ],
)
def test_trend_follows_the_interval(before: int, after: int, trend: str) -> None:
    found = compare(results(scored(before, 10)), results(scored(after, 10)))
    (only,) = found.rows
    assert only.trend == trend
    assert only.change.mean == pytest.approx((after - before) / 10)
    assert found.sentence == f"Leakage {trend}."


def test_more_images_show_smaller_changes() -> None:
    few, many = (
        compare(results(scored(6 * n, 10 * n)), results(scored(2 * n, 10 * n))).rows[0].trend
        for n in (1, 10)
    )
    assert (few, many) == ("cannot be told apart", "fell")


def test_luck_that_rose_as_much_is_no_leak() -> None:
    (only,) = compare(results(scored(2, 20)), results(scored(12, 20, baseline=10))).rows
    assert only.change.mean == pytest.approx(0)
    assert only.trend == "cannot be told apart"


def test_what_only_one_audit_has_is_listed(matrix: Results) -> None:
    found = compare(matrix, replace_model(results(scored(9, 10), scored(1, 10, attack="dlg"))))
    assert [(each.configuration, each.attack) for each in found.rows] == [("none", "sme")]
    assert ("top_k", "ig") in found.only_before
    assert found.only_after == (("none", "dlg"),)
    assert found.differences == ("model: cnn-cifar, then mlp",)
    assert found.rows[0].accuracy_before == pytest.approx(0.6)
    assert found.rows[0].accuracy_after is None


def replace_model(found: Results) -> Results:
    return found.model_copy(update={"model": "mlp"})


def test_nothing_in_common_is_said() -> None:
    found = compare(results(scored(1, 2)), results(scored(1, 2, attack="ig")))
    assert found.rows == ()
    assert "nothing to compare" in found.sentence


def shown(before: Results, after: Results, width: int = 160) -> str:
    file = io.StringIO()
    show_comparison(before, after, Console(file=file, width=width))
    return file.getvalue()


def test_the_table_says_everything(matrix: Results) -> None:
    evidence, provenance = audit(leaking=1)
    text = shown(matrix, judge(evidence, provenance))
    line = next(each for each in text.splitlines() if "none" in each and "sme" in each)
    for part in ("80%→0%", "-80 [", "60%→60%", "17.9", "fell"):
        assert part in line
    assert "Of 6 comparisons, leakage fell in 1, cannot be told apart in 5." in text


def test_many_rows_come_with_a_warning(matrix: Results) -> None:
    assert "about one looks" not in shown(matrix, matrix)
    runs = [scored(1, 2, attack=f"a{number}") for number in range(10)]
    assert "about one looks" in shown(results(*runs), results(*runs))


def test_names_are_not_taken_for_markup() -> None:
    odd = results(scored(1, 2, attack="[bold]x[/nothing]"))
    assert "[bold]x[/nothing]" in shown(odd, odd)
    assert "Only in the first: none ([bold]x[/nothing])" in shown(odd, results(scored(1, 2)))


def test_the_table_fits_a_narrow_terminal(matrix: Results) -> None:
    lines = shown(matrix, matrix, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("none, sme" in line and "60%→60%" in line for line in lines)


def test_rows_without_accuracy_have_no_column_for_it() -> None:
    one = results(scored(1, 2))
    assert "Accuracy" not in shown(one, one)
    costed = replace(PROVENANCE, configurations=(row("none", utility=utility(0.5)),))
    assert "?→50%" in shown(one, results(scored(1, 2), provenance=costed))


def test_intervals_are_kept() -> None:
    (attack,) = results(scored(3, 10)).configurations[0].attacks
    assert attack.leak is not None
    assert attack.leak.interval == excess(3, 0, 10)
    assert isinstance(attack.leak.interval, Interval)
