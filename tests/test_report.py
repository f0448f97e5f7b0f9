from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from leakmeter import data, report
from leakmeter.attacks.reconstruction import Reconstruction
from leakmeter.errors import LeakmeterError
from leakmeter.judge import ConfigurationResult, Evidence, Provenance, Truth, judge, strongest_first
from leakmeter.measure import Finding, Scores, interval, measure
from leakmeter.report.gallery import SHOWN, exhibits, picture
from leakmeter.update import Protocol

ATTACK = "<script>window.injected = true</script>"

PHOTOS = data.load("photos", size=32)

PROTOCOL = Protocol(
    epochs=20,
    batch_size=10,
    lr=0.004,
    optimizer="sgd",
    momentum=0.9,
    normalize=((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    batchnorm="eval",
    input_shape=(3, 32, 32),
    classes=8,
)

PROVENANCE = Provenance(
    title="Updates of the photo client",
    command="leakmeter audit examples/photos.yaml --out out",
    scenario="model: cnn-cifar\ndata: photos\nseed: 0\n",
    model="cnn-cifar",
    parameters=1_731_232,
    data="photos",
    class_names=PHOTOS.class_names,
    versions={"leakmeter": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "platform": "Linux"},
    date="2025-11-16T04:00:00+00:00",
)


def reconstruction(images: Tensor, labels: Tensor, end: float, seed: int = 0) -> Reconstruction:
    fall = torch.linspace(0, 1, 300)
    match = end + (0.9 - end) * torch.exp(-6 * fall) * (1 + 0.1 * torch.sin(90 * fall))
    return Reconstruction(
        images=images,
        labels=labels,
        history={"loss": match + 0.01, "match": match},
        seconds=42.4,
        attack="Attack(trajectory=Line(alpha=0.5, lr=0.001), distance=Cosine())",
        seed=seed,
        labels_known=True,
    )


def sample(
    attack: str = "sme",
    client: int = 0,
    *,
    count: int = 4,
    damage: float = 0.15,
    source: data.Dataset = PHOTOS,
    truth: bool = True,
) -> Evidence:
    """Real photographs; each reconstruction is worse than the one before, all in another order."""
    chosen = (torch.arange(count) + client * count) % len(source)
    images, labels = source.images[chosen], source.labels[chosen]
    generator = torch.Generator().manual_seed(client)
    noise = torch.randn(images.shape, generator=generator)
    flat = functional.avg_pool2d(noise, 5, 1, 2) + 0.5
    share = (damage * (0.5 + torch.arange(count) / count)).clamp(0, 1)[:, None, None, None]
    order = torch.randperm(count, generator=generator)
    worn = (images + share * functional.avg_pool2d(noise, 3, 1, 1)).clamp(0, 1)
    found = reconstruction(worn[order], labels[order], end=damage / (10 + client), seed=client)
    finding = None
    if truth:
        baseline = reconstruction(flat.clamp(0, 1), labels, end=0.5)
        finding = measure(found, baseline, images, labels, images.flip(-1), labels)
    known = Truth(images, labels) if truth else None
    return Evidence(attack, client, PROTOCOL, "weights", found, known, finding)


def render(evidence: list[Evidence], provenance: Provenance) -> str:
    return report.render(judge(evidence, provenance), evidence, provenance)


def verdict(evidence: list[Evidence]) -> ConfigurationResult:
    """Of the only configuration."""
    (only,) = judge(evidence, PROVENANCE).configurations
    return only


def two_attacks() -> list[Evidence]:
    """A weak and a strong attack, each on two clients."""
    weak = [sample("ig", client, damage=1.8) for client in (0, 1)]
    return weak + [sample("sme", client) for client in (0, 1)]


def scored(hits: int, total: int, baseline: int = 0, attack: str = "sme") -> Evidence:
    """Evidence with a chosen number of recognized images."""

    def scores(recognized: int) -> Scores:
        hit = [i < recognized for i in range(total)]
        return Scores(
            pairs=list(range(total)),
            psnr=[18.0 if yes else 17.9 for yes in hit],
            ssim=[0.5] * total,
            mse=[0.01] * total,
            reidentified=[True] * total,
            label_accuracy=1.0,
        )

    blank, labels = torch.zeros(total, 3, 32, 32), torch.zeros(total, dtype=torch.long)
    finding = Finding(scores=scores(hits), baseline=scores(baseline), chance=0.1)
    found = reconstruction(blank, labels, end=0.1)
    return Evidence(attack, 0, PROTOCOL, "weights", found, Truth(blank, labels), finding)


def text_of(page: str) -> str:
    """What a reader sees, on one line."""
    body = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", body)))


# The verdict


@pytest.mark.parametrize(
    ("hits", "baseline", "level"),
    [
        (10, 0, "leaks"),
        (5, 0, "leaks"),
        (4, 0, "leaks in part"),
        (6, 1, "leaks"),
        (5, 1, "leaks in part"),
        (1, 0, "leaks in part"),
        (2, 1, "leaks in part"),
        (1, 1, "could not break it"),
        (0, 1, "could not break it"),
        (0, 0, "could not break it"),
    ],
)
def test_level_follows_the_excess_over_the_baseline(hits: int, baseline: int, level: str) -> None:
    assert verdict([scored(hits, 10, baseline)]).level == level


def test_half_of_an_odd_number_is_not_rounded() -> None:
    assert [verdict([scored(hits, 7)]).level for hits in (3, 4)] == ["leaks in part", "leaks"]


@pytest.mark.parametrize(
    ("hits", "total", "start"),
    [(8, 10, "8 of 10 training images"), (3, 3, "All 3 training images"), (1, 1, "The only")],
)
def test_sentence_counts_images(hits: int, total: int, start: str) -> None:
    sentence = verdict([scored(hits, total)]).sentence
    assert sentence.startswith(start)
    assert sentence.endswith("could be read out of this update and recognized.")


def test_clients_are_counted_together() -> None:
    found = verdict([scored(6, 6), replace(scored(0, 4), client=1)])
    assert found.level == "leaks"
    assert found.sentence.startswith("6 of 10 training images could be read out of these 2 updates")


def test_the_strongest_attack_decides() -> None:
    assert verdict([scored(0, 10, attack="ig"), scored(7, 10)]).sentence.startswith("7 of 10")


def picked_out(hits: int, total: int, baseline: int) -> Evidence:
    """Evidence with poor pictures of which so many win their line-up."""
    evidence = scored(0, total)
    assert evidence.finding is not None
    sides = {
        side: getattr(evidence.finding, side).model_copy(
            update={"reidentified": [i < count for i in range(total)]}
        )
        for side, count in (("scores", hits), ("baseline", baseline))
    }
    return replace(evidence, finding=evidence.finding.model_copy(update=sides))


@pytest.mark.parametrize(
    ("hits", "baseline", "level"),
    [(10, 1, "leaks in part"), (6, 1, "leaks in part"), (5, 1, "could not break it")],
)
def test_poor_pictures_that_win_their_line_ups_leak_in_part(
    hits: int, baseline: int, level: str
) -> None:
    found = verdict([picked_out(hits, 10, baseline)])
    assert found.level == level
    assert ("line-up" in found.sentence) == (level == "leaks in part")


def test_failure_against_an_optimizer_that_is_not_predicted_says_so() -> None:
    plain = PROTOCOL.model_copy(update={"momentum": 0.0})
    evidence = replace(scored(0, 4), protocol=plain)
    assert "predict plain SGD" not in verdict([evidence]).detail
    adam = replace(evidence, protocol=PROTOCOL.model_copy(update={"optimizer": "adam"}))
    assert "the client used adam" in verdict([adam]).detail


def test_an_attack_no_better_than_noise_does_not_hide_one_that_is() -> None:
    noise, real = scored(5, 10, baseline=5, attack="loud"), scored(4, 10, attack="quiet")
    assert verdict([noise, real]).level == "leaks in part"


def test_mean_psnr_breaks_ties() -> None:
    weak, strong = sample("ig", damage=1.9), sample("sme", damage=1.8)
    assert weak.finding is not None
    assert strong.finding is not None
    assert sum(weak.finding.scores.recognized) == sum(strong.finding.scores.recognized) == 0
    assert [attack.attack for attack in strongest_first([weak, strong])] == ["sme", "ig"]


def test_failure_names_the_effort_and_never_says_safe() -> None:
    found = verdict([scored(0, 10, attack="ig"), scored(0, 10)])
    assert "ig (300 iterations), sme (300 iterations)" in found.detail
    assert "safe" not in f"{found.level} {found.sentence} {found.detail}".lower()


def test_no_more_than_noise_is_said_so() -> None:
    assert "(1 against 2 of 10)" in verdict([scored(1, 10, 2)]).sentence


def test_without_truth_the_verdict_says_where_to_look() -> None:
    found = verdict([sample(truth=False)])
    assert found.level == "not measured"
    assert "cannot be measured without the original images" in found.sentence
    assert all(place in found.detail for place in ("final match", "pictures"))


# The page


@pytest.fixture(scope="module")
def page() -> str:
    return render(two_attacks(), PROVENANCE)


def test_verdict_comes_first_then_the_sections_in_order(page: str) -> None:
    ids = re.findall(r'<section id="([a-z]+)"', page)
    assert ids == [
        *("verdict", "reading", "assumptions", "pictures", "numbers"),
        *("curves", "reproduce", "limits"),
    ]
    assert "could be read out of these 2 updates" in text_of(page)


def test_strongest_attack_is_shown_first(page: str) -> None:
    assert page.index("Pictures of sme") < page.index("Pictures of ig")


def test_assumptions_are_all_there(page: str) -> None:
    text = text_of(page)
    for fact in ("Local epochsknown20", "Batch sizeknown10", "Learning rateknown0.004"):
        assert fact in text
    assert "Labelsassumedgiven to sme, ig" in text
    assert "SGD, momentum 0.9" in text
    assert "running statistics (eval mode)" in text
    assert "before and after local training" in text


def test_unknown_protocol_fields_are_marked() -> None:
    run = replace(sample(count=1), protocol=Protocol(), shares="gradient")
    text = text_of(render([run], PROVENANCE))
    for name in ("Local epochs", "Batch size", "Learning rate", "Optimizer", "Batch norm"):
        assert f"{name}unknownnot used" in text
    assert "What was sentseenthe network's weights and one gradient" in text


def test_recovered_labels_come_with_their_accuracy() -> None:
    run = sample()
    recovered = replace(run, found=replace(run.found, labels_known=False))
    assert "recoveredread out of the update by sme (100% right)" in text_of(
        render([recovered], PROVENANCE)
    )


def test_every_image_is_beside_its_original_sorted_by_leakage() -> None:
    runs = [sample("sme", client) for client in (0, 1)]
    shown = exhibits(runs, PROVENANCE.class_names)
    leakage = [exhibit.score.psnr for exhibit in shown if exhibit.score]
    assert len(leakage) == 8
    assert leakage == sorted(leakage, reverse=True)
    for exhibit in shown:
        run = runs[exhibit.client]
        assert run.truth is not None
        assert run.finding is not None
        match = run.finding.scores.pairs[exhibit.index]
        assert exhibit.original == picture(run.truth.images[exhibit.index])
        assert exhibit.found == picture(run.found.images[match])


def test_numbers_come_with_intervals_and_baseline(page: str) -> None:
    findings = [finding for client in (0, 1) if (finding := sample("sme", client).finding)]
    psnr = interval(torch.tensor([value for each in findings for value in each.scores.psnr]))
    text = text_of(page)
    assert f"{psnr.mean:.1f} [{psnr.low:.1f}, {psnr.high:.1f}]" in text
    assert "sme 8 of 80 of 8" in text
    assert "given" in text


def test_one_image_has_no_interval() -> None:
    assert "nan" not in text_of(render([sample(count=1)], PROVENANCE)).lower()


def test_one_attack_needs_no_switch(page: str) -> None:
    assert 'type="radio"' in page
    assert 'type="radio"' not in render([sample()], PROVENANCE)


def test_reproduction_is_complete(page: str) -> None:
    text = text_of(page)
    for part in (PROVENANCE.command, "data: photos", "Seeds of the attacks0, 1", "torch2.13.0"):
        assert part in text
    assert text.count("Attack(trajectory=Line(alpha=0.5, lr=0.001), distance=Cosine())") == 2
    assert PROVENANCE.date in text


def test_without_truth_there_are_reconstructions_only() -> None:
    page = render([sample(truth=False)], PROVENANCE)
    assert len(re.findall(r"<img ", page)) == 4
    assert "PSNR" not in text_of(page)
    assert "Final match" in text_of(page)


def test_attacks_with_and_without_truth_can_share_a_page() -> None:
    page = render([sample("ig", truth=False), sample("sme")], PROVENANCE)
    assert "not measured: no originals" in text_of(page)
    assert page.index("Pictures of sme") < page.index("Pictures of ig")


# Safety and form


def test_text_from_outside_is_escaped() -> None:
    hostile = replace(
        PROVENANCE,
        title=ATTACK,
        command=ATTACK,
        scenario=ATTACK,
        model=ATTACK,
        data=f'"{ATTACK}',
        class_names=(f'"><img src=x onerror=alert(1)>{ATTACK}',) * 8,
        versions={ATTACK: ATTACK},
        date=f'"{ATTACK}',
    )
    run = sample(ATTACK)
    other = sample(f"{ATTACK} $x", damage=1.8)
    for each in ([run, other], [sample(ATTACK, truth=False)]):
        page = render(each, hostile)
        assert "<script" not in page
        assert "<img src=x" not in page
        assert "&lt;script&gt;" in page


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert "<link" not in page
    assert "<script" not in page
    assert "@import" not in page
    sources = re.findall(r'\bsrc="([^"]{22})', page)
    assert set(sources) == {"data:image/png;base64,"}


def test_ids_are_unique_and_links_lead_somewhere(page: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_charts_take_the_colors_of_the_page(page: str) -> None:
    chart = page[page.index('<section id="curves"') : page.index('<section id="reproduce"')]
    assert chart.count("<svg") == 2
    assert "var(--series-1)" in chart
    assert not re.search(r"#[0-9a-f]{6}\b(?!\")", re.sub(r"#[mp][0-9a-f]{10}", "", chart))


def test_same_input_same_page(page: str) -> None:
    assert render(two_attacks(), PROVENANCE) == page


@pytest.mark.parametrize(
    ("shape", "width", "height"),
    [
        ((1, 25, 25), 125, 125),
        ((1, 28, 28), 112, 112),
        ((3, 32, 32), SHOWN, SHOWN),
        ((3, 64, 32), 64, SHOWN),
        ((3, 224, 224), 224, 224),
    ],
)
def test_small_images_are_enlarged_by_whole_factors(
    shape: tuple[int, int, int], width: int, height: int
) -> None:
    shown = picture(torch.rand(shape))
    assert (shown.width, shown.height) == (width, height)
    assert shown.enlarged == (shape[1] < width or shape[2] < height)


def test_labels_without_a_name_are_numbered() -> None:
    assert "class 3" in text_of(render([sample()], replace(PROVENANCE, class_names=())))


def test_a_match_that_barely_moves_or_touches_zero_can_be_drawn() -> None:
    run = sample(count=1)
    for match in (torch.full((3,), 0.5), torch.zeros(3), torch.tensor([float("inf"), 1.0, 1e-9])):
        found = replace(run.found, history={"loss": match, "match": match})
        assert "<svg" in render([replace(run, found=found)], PROVENANCE)


@pytest.mark.parametrize("name", ["漢字", "_hidden\n" * 9, "_", "$x_"])
def test_an_attack_may_have_any_name(name: str) -> None:
    assert name.split()[0] in text_of(render([sample(name, count=1)], PROVENANCE))


def test_no_evidence_is_refused() -> None:
    with pytest.raises(LeakmeterError, match="evidence is empty"):
        render([], PROVENANCE)


def test_write_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    run = sample(count=1)
    report.write(judge([run], PROVENANCE), [run], PROVENANCE, path)
    assert path.read_text(encoding="utf-8") == render([run], PROVENANCE)
    assert list(tmp_path.iterdir()) == [path]


def test_write_says_where_it_cannot(tmp_path: Path) -> None:
    run = sample(count=1)
    results = judge([run], PROVENANCE)
    with pytest.raises(LeakmeterError, match=r"cannot write .*nowhere"):
        report.write(results, [run], PROVENANCE, tmp_path / "nowhere" / "report.html")
