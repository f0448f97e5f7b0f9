"""The report of an audit with several configurations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from leakmeter.errors import LeakmeterError
from leakmeter.federated.defenses.base import Guarantee
from leakmeter.judge import (
    IGNORED,
    Configuration,
    Evidence,
    Provenance,
    Results,
    Utility,
    judge,
    strongest_first,
)
from leakmeter.judge.evidence import grouped
from leakmeter.judge.words import learns, promise, size
from leakmeter.report.facts import attack_methods, defense_methods
from leakmeter.report.frontier import Point, Rectangle, placed, unbeaten
from leakmeter.report.gallery import exhibits
from test_report import ATTACK, PROVENANCE, picked_out, render, sample, scored, text_of, verdict


def utility(*accuracy: float, chance: float = 0.125, test_images: int = 200) -> Utility:
    return Utility(
        accuracy=list(accuracy),
        chance=chance,
        test_images=test_images,
        rounds=10,
        clients=5,
        seconds=3.0,
    )


def row(defense: str, **fields: Any) -> Configuration:
    return Configuration(defense=defense, bytes_sent=6_000_000, rounds=10, **fields)


def recommended(found: Results) -> str | None:
    return None if found.recommended is None else found.recommended.label


def configured(run: Evidence, label: str) -> Evidence:
    return replace(run, configuration=label)


def provenance(*configurations: Configuration) -> Provenance:
    return replace(PROVENANCE, configurations=configurations)


def audit(leaking: int = 9) -> tuple[list[Evidence], Provenance]:
    """One configuration that leaks and two that hold, one of them only against the ignorant."""
    rows = (
        row("none", utility=utility(0.58, 0.62)),
        row(
            "top_k",
            utility=utility(0.5),
            known=("Knows the zeros.",),
            adaptive=("Masks the zeros.",),
            guarantee=Guarantee(3.5, 3.25, 1e-5),
        ),
        row("soteria", utility=utility(0.55), known=("Knows it.",), ignored=("soteria",)),
    )
    hits = {"none": (leaking, 2), "top_k": (1, 0), "soteria": (0, 0)}
    evidence = [
        configured(scored(count, 10, baseline=1, attack=attack), label)
        for label, counts in hits.items()
        for attack, count in zip(("sme", "ig"), counts, strict=True)
    ]
    return evidence, provenance(*rows)


def pictured() -> tuple[list[Evidence], Provenance]:
    """The same with real photographs, two clients and two attacks."""
    rows = audit()[1].configurations
    evidence = []
    for each, damage in zip(rows, (0.15, 1.5, 1.8), strict=True):
        for attack, factor in (("ig", 1.5), ("sme", 1.0)):
            for client in (0, 1):
                run = sample(attack, client, count=2, damage=damage * factor)
                if each.label != "none":
                    run = no_better_than_noise(run)
                evidence.append(configured(run, each.label))
    return evidence, provenance(*rows)


def no_better_than_noise(run: Evidence) -> Evidence:
    assert run.finding is not None
    pairs = {"pairs": run.finding.scores.pairs}
    scores = run.finding.baseline.model_copy(update=pairs)
    return replace(run, finding=run.finding.model_copy(update={"scores": scores}))


def advice(**held: Configuration) -> str:
    """What is advised if all of ``held`` hold and an undefended 60% leaks."""
    rows = [row("none", utility=utility(0.6)), *held.values()]
    runs = [configured(scored(0 if n else 9, 10), each.label) for n, each in enumerate(rows)]
    return judge(runs, provenance(*rows)).advice


# The first screen


def test_one_configuration_is_judged_as_ever() -> None:
    runs = [scored(7, 10), scored(1, 10, attack="ig")]
    found, alone = judge(runs, PROVENANCE), verdict(runs)
    assert (found.level, found.sentence, found.detail) == (
        alone.level,
        alone.sentence,
        alone.detail,
    )
    assert found.advice == found.assumptions == ""


def test_every_configuration_is_judged_by_the_same_rule() -> None:
    found = judge(*audit())
    assert [each.level for each in found.configurations] == [
        *("leaks", "could not break it", "could not break it"),
    ]
    assert found.level == "leaks"
    assert found.worst.label == "none"


def test_the_sentence_counts_configurations_and_images() -> None:
    assert judge(*audit()).sentence == (
        "1 of 3 configurations leaks: with no defense, 9 of 10 training images could be read out "
        "of this update and recognized."
    )
    runs = [configured(scored(n, 4), label) for label, n in (("none", 1), ("lora", 3))]
    both = judge(runs, provenance(row("none"), row("lora")))
    assert both.sentence.startswith("All 2 configurations leak: with “lora”, 3 of 4 training")
    assert both.level == "leaks"


def test_what_could_not_be_measured_is_not_counted_as_unbroken() -> None:
    rows = provenance(row("none"), row("lora"), row("top_k"))
    unknown = configured(sample(truth=False), "top_k")

    def sentence(*hits: int) -> str:
        known = [
            configured(scored(n, 4), label)
            for label, n in zip(("none", "lora"), hits, strict=False)
        ]
        return judge([*known, unknown], rows).sentence

    assert sentence(0, 0) == (
        "No attack tried here could break any of the 2 configurations that could be measured."
    )
    assert sentence(3, 0).startswith("1 of 2 configurations that could be measured leaks: with ")
    assert sentence(3).startswith("The only configuration that could be measured leaks: with ")
    assert sentence(0).endswith("the only one of the configurations that could be measured.")


def test_details_set_the_baseline_beside_the_strongest_attack() -> None:
    assert "no defense 9 of 10 (1)" in judge(*audit()).detail


def test_line_ups_are_counted_where_pictures_are_poor() -> None:
    runs = [configured(picked_out(8, 10, 1), "none"), configured(scored(0, 10), "lora")]
    found = judge(runs, provenance(row("none"), row("lora")))
    assert found.level == "leaks in part"
    assert "8 of 10 picked out (1)" in found.detail


def test_many_leaks_are_not_all_named_first() -> None:
    rows = [row(f"d{number}") for number in range(8)]
    runs = [configured(scored(9, 10), each.label) for each in rows]
    found = judge(runs, provenance(*rows))
    assert found.sentence.startswith("All 8 configurations leak")
    assert "and 3 more below" in found.detail


def test_assumptions_name_the_attacker_the_labels_and_the_effort() -> None:
    said = judge(*audit()).assumptions
    assert "server" in said
    assert "labels of the images were given to sme, ig" in said
    assert "each with 300 iterations: sme, ig" in said


def test_nothing_broken_is_never_called_safe() -> None:
    runs = [configured(scored(0, 10), label) for label in ("none", "lora")]
    found = judge(runs, provenance(row("none", utility=utility(0.6)), row("lora")))
    assert found.level == "could not break it"
    assert found.sentence == "No attack tried here could break any of the 2 configurations."
    assert "no proof" in found.detail
    assert "safe" not in f"{found.sentence} {found.detail} {found.advice}".lower()
    assert "no reason to change anything" in found.advice


def test_evidence_of_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(LeakmeterError, match=r"configuration 'lora', but .* only 'none'"):
        judge([configured(scored(1, 2), "lora")], PROVENANCE)


def test_configurations_keep_their_order_and_empty_ones_are_left_out() -> None:
    runs = [configured(scored(1, 2), label) for label in ("b", "a")]
    groups = grouped(runs, provenance(row("a"), row("c"), row("b")))
    assert [configuration.label for configuration, _ in groups] == ["a", "b"]


# What to do


def test_the_most_accurate_that_held_is_advised_with_its_price() -> None:
    text = advice(
        weak=row("lora", utility=utility(0.4)),
        strong=row("dp", utility=utility(0.5), guarantee=Guarantee(3.5, 3.25, 1e-5)),
    )
    assert text.startswith("Use “dp”: it is the most accurate of 2 that held")
    assert "Accuracy 50% (with no defense 60%)" in text
    assert "guarantee ε = 3.25 at δ = 1e-05 (one image, 10 rounds)" in text
    assert "6 MB sent per client and round" in text
    assert "up to 28% of all would (95%)" in text


def test_a_leaking_configuration_is_never_advised() -> None:
    rows = [row("none", utility=utility(0.9)), row("lora", utility=utility(0.5))]
    runs = [configured(scored(count, 10), r.label) for count, r in zip((1, 0), rows, strict=True)]
    found = judge(runs, provenance(*rows))
    assert recommended(found) == "lora"
    assert "alone of all tried here held" in found.advice


def test_a_defense_that_attacks_ignore_is_marked_and_one_they_know_advised() -> None:
    found = judge(*audit())
    assert recommended(found) == "top_k"
    assert f"(“soteria” held with 55%, but was {IGNORED}.)" in found.advice
    untried = advice(only=row("augment", utility=utility(0.5), ignored=("augment",)))
    assert f"But it was {IGNORED}." in untried
    alone = provenance(row("soteria", ignored=("soteria",)))
    assert IGNORED in judge([configured(scored(0, 4), "soteria")], alone).detail


def test_protection_that_stops_learning_is_no_bargain() -> None:
    text = advice(only=row("dp", utility=utility(0.15)))
    assert "nothing tried here both held and let it learn" in text
    assert "learned no more" not in advice(only=row("dp", utility=utility(0.5)))


def test_a_training_in_which_nothing_learns_compares_nothing() -> None:
    rows = [row("none", utility=utility(0.14)), row("dp", utility=utility(0.13))]
    runs = [configured(scored(count, 10), r.label) for count, r in zip((9, 0), rows, strict=True)]
    assert "train for more rounds" in judge(runs, provenance(*rows)).advice


def test_without_accuracy_the_choice_is_left_open() -> None:
    text = advice(a=row("lora"), b=row("soteria", ignored=("soteria",)))
    assert "“lora”, “soteria”" in text
    assert "add utility to the scenario" in text
    assert f"“soteria”: {IGNORED}" in text


def test_if_nothing_held_the_least_leak_is_named() -> None:
    rows = [row("none", utility=utility(0.6)), row("lora", utility=utility(0.5))]
    runs = [configured(scored(count, 10), r.label) for count, r in zip((9, 6), rows, strict=True)]
    found = judge(runs, provenance(*rows))
    assert found.advice.startswith("Nothing tried here is enough. “lora” leaked least (6 of 10")
    assert recommended(found) is None


def test_each_setting_is_set_against_its_own_undefended_clients() -> None:
    rows = [
        Configuration(setting=setting, defense=defense, utility=utility(accuracy))
        for setting, defense, accuracy in (
            *(("epochs=1", "none", 0.7), ("epochs=1", "lora", 0.4)),
            *(("epochs=9", "none", 0.8), ("epochs=9", "lora", 0.6)),
        )
    ]
    counts = (9, 0, 9, 0)
    runs = [configured(scored(n, 10), r.label) for n, r in zip(counts, rows, strict=True)]
    text = judge(runs, provenance(*rows)).advice
    assert text.startswith("Use “epochs=9; lora”")
    assert "Accuracy 60% (with “epochs=9” 80%)" in text


# Costs


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (812, "812 B"), (10_400, "10.4 kB"), (6_924_928, "6.92 MB"), (2 * 10**9, "2 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_an_infinite_epsilon_promises_nothing() -> None:
    inf = float("inf")

    def promised(guarantee: Guarantee) -> str:
        rows = provenance(row("dp", guarantee=guarantee))
        return promise(judge([configured(scored(1, 2), "dp")], rows).configurations[0])

    assert promised(Guarantee(inf, inf, 1e-5)) == ""
    assert "whole client" in promised(Guarantee(2.0, 1.5, 1e-5, "client"))


def test_learning_is_told_from_chance_by_the_number_of_test_images() -> None:
    assert learns(utility(0.3, test_images=200))
    assert not learns(utility(0.3, test_images=8))
    assert not learns(utility(0.1))


# The frontier


def point(leakage: float, accuracy: float, label: str = "x") -> Point:
    return Point(label, "leaks", leakage, 0.0, 1.0, accuracy, accuracy, accuracy, 0.1)


def test_unbeaten_points_are_joined_from_low_to_high_leakage() -> None:
    best, good, costly = point(0.0, 0.5), point(0.4, 0.6), point(1.0, 0.7)
    beaten = [point(0.0, 0.4), point(0.5, 0.6), point(1.0, 0.1)]
    assert unbeaten([costly, *beaten, good, best]) == [best, good, costly]
    assert unbeaten([best, best]) == [best, best]


def test_labels_of_ten_points_in_one_place_do_not_overlap() -> None:
    frame = Rectangle(0, 0, 600, 300)
    crowds = [
        [(590.0, 150.0, 200.0)] * 5 + [(5.0, 150.0, 200.0)] * 5,
        [(300.0, 20.0 + n, 180.0) for n in range(10)],
    ]
    for crowd in crowds:
        taken = [Rectangle(x - 6, y - 6, x + 6, y + 6) for x, y, _ in crowd]
        boxes = placed(crowd, taken, frame)
        for number, box in enumerate(boxes):
            others = [*boxes[:number], *boxes[number + 1 :], *taken]
            assert not any(box.overlaps(other) for other in others)
            assert frame.left <= box.left < box.right <= frame.right
            assert frame.bottom <= box.bottom < box.top <= frame.top


def test_a_label_wider_than_the_chart_is_placed_all_the_same() -> None:
    assert len(placed([(5.0, 5.0, 900.0)], [], Rectangle(0, 0, 600, 300))) == 1


# The page


@pytest.fixture(scope="module")
def page() -> str:
    return render(*pictured())


def test_the_matrix_follows_the_first_screen(page: str) -> None:
    assert re.findall(r'<section id="([a-z]+)"', page) == [
        *("verdict", "matrix", "frontier", "verdicts", "reading", "assumptions", "pictures"),
        *("numbers", "curves", "reproduce", "limits"),
    ]


def test_first_screen_says_what_leaks_what_is_assumed_and_what_to_do(page: str) -> None:
    text = text_of(page[page.index('id="verdict"') : page.index('id="matrix"')])
    found = judge(*pictured())
    for part in (found.sentence, found.detail, found.assumptions, found.advice):
        assert " ".join(part.split()) in text
    assert "Use “top_k”: it alone of those attacks know held" in found.advice


def test_cells_hold_their_numbers_and_lead_to_their_pictures() -> None:
    page = render(*audit())
    table = page[page.index('<table class="matrix"') :]
    cells = re.findall(r'--share: ([\d.]+)"><a href="#([\w-]+)"><b>([\w ]+)</b>', table)
    assert [cell[2] for cell in cells] == ["9 of 10", "2 of 10", "1 of 10", *["0 of 10"] * 3]
    assert [cell[0] for cell in cells] == ["0.800", "0.100", "0.000", *["0.000"] * 3]
    assert [cell[1] for cell in cells[:3]] == ["panel-0-0", "panel-0-1", "panel-1-0"]
    for _, panel, _ in cells:
        assert page.count(f'<section id="{panel}"') == 1
    text = text_of(table)
    for part in ("60% 58 to 62%", "3.25 one image", "6 MB", "noise 1 of 10", IGNORED):
        assert part in text


def test_only_what_was_measured_has_a_column() -> None:
    runs = [configured(scored(n, 4), label) for label, n in (("none", 3), ("lora", 0))]
    page = render(runs, provenance(Configuration(), Configuration(defense="lora")))
    head = text_of(page[page.index('<table class="matrix"') : page.index("</thead>")])
    assert "Configuration sme" in head
    assert not any(word in head for word in ("Accuracy", "ε", "Sent"))
    assert 'id="frontier"' not in page


def test_a_matrix_without_originals_explains_no_counts() -> None:
    runs = [configured(sample(truth=False), label) for label in ("none", "top_k")]
    text = text_of(render(runs, provenance(row("none"), row("top_k"))))
    assert "6 of 8" not in text
    assert "recognized" not in text[text.index("Every configuration against") :][:400]
    assert "no originals" in text


def test_an_attack_that_was_not_tried_leaves_its_cell_blank() -> None:
    runs = [configured(scored(3, 4), "none"), configured(scored(3, 4), "lora")]
    runs.append(configured(scored(2, 4, attack="ig"), "none"))
    page = render(runs, provenance(row("none"), row("lora")))
    assert text_of(page).count("not tried") == 1


def test_every_configuration_has_its_verdict(page: str) -> None:
    text = text_of(page[page.index('id="verdicts"') : page.index('id="reading"')])
    for each in judge(*pictured()).configurations:
        assert f"{each.name} {each.level}" in text
        assert " ".join(each.detail.split()) in text
    assert f"The defense soteria was {IGNORED}." in text


def test_assumptions_say_what_is_known_about_each_defense(page: str) -> None:
    text = text_of(page[page.index('id="assumptions"') : page.index('id="pictures"')])
    assert "top_k Knows the zeros. Masks the zeros." in text
    assert f"soteria Knows it. soteria: {IGNORED}." in text
    assert "Training imagesknown2 per client" in text


def test_facts_are_about_clients_without_a_defense() -> None:
    runs, about = audit()
    fast = runs[0].protocol.model_copy(update={"epochs": 99})
    changed = [replace(run, protocol=fast) if run.configuration == "top_k" else run for run in runs]
    assert "Local epochsknown20 " in text_of(render(changed, about))


def test_every_original_is_embedded_once(page: str) -> None:
    originals = re.findall(r'<symbol id="(original-\d+)"', page)
    assert len(originals) == 4
    for name in originals:
        # In six galleries, and one of them on the first screen.
        assert page.count(f'href="#{name}"') in (6, 7)
    pictures = re.findall(r'"(data:image/png;base64,[^"]+)"', page)
    assert len(pictures) == 4 + 6 * 4 + 2


def test_first_screen_shows_the_leak_and_the_same_image_protected(page: str) -> None:
    figure = page[page.index('<figure class="exhibit"') : page.index('id="matrix"')]
    assert text_of(figure).startswith(" original no defense top_k ")
    leak, kept = re.findall(r'src="([^"]+)"', figure)
    (name,) = re.findall(r'href="#(original-\d+)"', figure)
    runs, _ = pictured()
    for uri, label in ((leak, "none"), (kept, "soteria")):
        own = [run for run in runs if run.configuration == label]
        strongest = strongest_first(own)[0].attack
        own = [run for run in own if run.attack == strongest]
        shown = exhibits(own, PROVENANCE.class_names)
        (exhibit,) = [each for each in shown if each.found.uri == uri]
        assert exhibit.original is not None
        assert f'<symbol id="{name}"' in page
        assert page.count(exhibit.original.uri) == 1


def test_large_audits_show_compressed_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakmeter.report.gallery.MOST_LOSSLESS", 1)
    runs, about = pictured()
    page = render(runs, about)
    assert "data:image/webp;base64," in page
    assert "data:image/png" not in page
    assert "compressed with loss" in text_of(page)
    alone = [run for run in runs if run.configuration == "none"]
    assert "data:image/webp" not in render(alone, provenance(about.configurations[0]))


def test_numbers_are_grouped_by_configuration(page: str) -> None:
    table = page[page.index('<table class="numbers"') :]
    table = table[: table.index("</table>")]
    assert re.findall(r'scope="rowgroup"[^>]*>([^<]+)<', table) == [
        "no defense",
        "top_k",
        "soteria",
    ]
    assert table.count('<th scope="row">') == 6
    (first,) = set(re.findall(r'scope="rowgroup" colspan="(\d+)"', table))
    row_ = table[table.index('<th scope="row">') :]
    assert int(first) == 1 + row_[: row_.index("</tr>")].count("<td")


def test_perceptual_distance_is_shown_where_it_was_measured(page: str) -> None:
    assert "LPIPS" not in text_of(page)
    run = sample(count=2)
    assert run.finding is not None
    sides = {
        side: getattr(run.finding, side).model_copy(update={"lpips": [0.25, 0.5]})
        for side in ("scores", "baseline")
    }
    text = text_of(render([replace(run, finding=run.finding.model_copy(update=sides))], PROVENANCE))
    assert "LPIPS 0.25" in text
    assert "0.38" in text[text.index("LPIPSmean") :]


def test_the_same_audit_gives_the_same_page(page: str) -> None:
    assert render(*pictured()) == page


def test_links_lead_somewhere_and_ids_are_unique(page: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)
    assert not re.search(r"https?:", page)


def test_text_from_outside_is_escaped() -> None:
    hostile = f'"><img src=x onerror=alert(1)>{ATTACK}'
    rows = [
        Configuration(
            setting=hostile,
            defense=f"{hostile}{number}",
            known=(hostile,),
            adaptive=(hostile,),
            ignored=(hostile,),
            utility=utility(0.5),
        )
        for number in range(2)
    ]
    runs = [configured(sample(hostile, count=1), each.label) for each in rows]
    page = render(runs, provenance(*rows))
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page


def test_a_page_of_an_ordinary_size_for_many_configurations() -> None:
    rows = [row(f"defense {number}", utility=utility(0.5)) for number in range(10)]
    noise = torch.Generator().manual_seed(0)
    runs = []
    for each in rows:
        for attack in ("sme", "ig", "retrace", "dlg"):
            run = configured(scored(2, 8, attack=attack), each.label)
            found = torch.rand(run.found.images.shape, generator=noise)
            runs.append(replace(run, found=replace(run.found, images=found)))
    # Noise is the worst case: no file format makes it smaller.
    assert len(render(runs, provenance(*rows))) < 3_000_000


def test_what_an_only_configuration_costs_is_said() -> None:
    only = row("top_k", utility=utility(0.5), known=("Knows it.",), ignored=("top_k",))
    text = text_of(render([configured(scored(1, 4), "top_k")], provenance(only)))
    assert "names 50% of images that no client had rightly" in text
    assert "A client sends 6 MB a round" in text
    assert "Knows it." in text
    assert 'id="matrix"' not in text


# Methods


def test_attacks_are_named_by_their_recipe_not_by_their_label() -> None:
    runs = [replace(scored(1, 2, attack="mine"), recipe="ig"), scored(1, 2, attack="sme")]
    (method,) = attack_methods(runs)
    assert (method.name, method.labels) == ("ig", ("mine",))
    assert "Geiping et al. 2020" in method.about
    assert "ig (mine)Inverting Gradients" in text_of(render(runs, PROVENANCE))


def test_defenses_of_all_configurations_are_named_once() -> None:
    rows = [row("a", parts=("top_k", "lora")), row("b", parts=("lora", "my own")), row("none")]
    found = defense_methods(rows)
    assert [method.name for method in found] == ["top_k", "lora"]
    assert "Hu et al. 2022" in found[1].about
