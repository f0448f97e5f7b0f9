"""Audits with several configurations: settings that vary, defenses, and what those cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import leakmeter as lm
from leakmeter import papers
from leakmeter.attacks.labels import Automatic
from leakmeter.attacks.problem import Problem
from leakmeter.audits import Scenario, knobs, run
from leakmeter.audits.setting import Setting, sent
from leakmeter.execution.executors import Cache
from leakmeter.federated.defenses import DEFENSES
from leakmeter.federated.defenses.base import moved
from leakmeter.federated.defenses.compress import TopK

SMALL: dict[str, Any] = {
    "model": {"name": "mlp"},
    "data": {"source": "faces"},
    "client": {"examples": 4, "epochs": 2, "batch_size": 2, "lr": 0.05},
    "attacks": [{"name": "ig", "options": {"iterations": 3}}],
}


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate(SMALL | changes)


def test_settings_are_all_combinations_of_what_varies() -> None:
    varied = scenario(vary={"client.epochs": [1, 3], "model.name": ["mlp", "lenet-zhu"]})
    settings = varied.settings()
    assert [label for label, _ in settings] == [
        "epochs=1, name=mlp",
        "epochs=1, name=lenet-zhu",
        "epochs=3, name=mlp",
        "epochs=3, name=lenet-zhu",
    ]
    assert [(s.client.epochs, s.model.name) for _, s in settings][2] == (3, "mlp")
    assert all(single.vary == {} for _, single in settings)


def test_another_data_set_brings_its_own_normalization() -> None:
    varied = scenario(vary={"data.source": ["photos", "npz:x.npz"]})
    assert [single.client.normalize for _, single in varied.settings()] == ["photos", None]


@pytest.mark.parametrize(
    ("spelt", "label", "names"),
    [
        ("none", "none", []),
        ("lora", "lora", ["lora"]),
        ({"name": "top_k", "options": {"keep": 0.5}}, "top_k keep=0.5", ["top_k"]),
        ({"label": "mine", "name": "quantize", "options": {"bits": 4}}, "mine", ["quantize"]),
        (
            {"parts": [{"name": "top_k", "options": {"keep": 0.5}}, {"name": "lora"}]},
            "top_k keep=0.5 + lora",
            ["top_k", "lora"],
        ),
    ],
)
def test_defenses_are_spelt_shortly(spelt: Any, label: str, names: list[str]) -> None:
    (protection,) = scenario(defenses=[spelt]).defenses
    assert protection.label == label
    assert [part.name for part in protection.parts] == names
    assert [type(each) for each in protection.build()] == [DEFENSES[name] for name in names]


def test_every_defense_meets_every_attack_and_nothing_is_done_twice(tmp_path: Path) -> None:
    wanted = scenario(
        defenses=["none", {"name": "top_k", "options": {"keep": 0.1}}],
        vary={"client.epochs": [1, 2]},
        utility={"rounds": 2, "clients": 3, "seeds": 2},
    )
    evidence, provenance = run(wanted, tmp_path)
    labels = ["epochs=1", "epochs=1; top_k keep=0.1", "epochs=2", "epochs=2; top_k keep=0.1"]
    assert [each.label for each in provenance.configurations] == labels
    assert [each.configuration for each in evidence] == labels
    dense, sparse = provenance.configurations[:2]
    assert sparse.bytes_sent < dense.bytes_sent / 4
    for row in provenance.configurations:
        assert row.utility is not None
        assert len(row.utility.accuracy) == 2
        assert row.utility.clients == 3
    # The no-update baseline does not depend on what is sent: one for each setting.
    assert len(list(tmp_path.glob("trials/*-baseline-*"))) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/*")}
    assert len(run(wanted, tmp_path)[0]) == 4
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/*")} == before


def test_undefended_clients_are_what_they_were(tmp_path: Path) -> None:
    (alone,), _ = run(scenario(), tmp_path / "alone")
    (among, _), _ = run(scenario(defenses=["none", "lora"]), tmp_path / "among")
    assert torch.equal(alone.found.images, among.found.images)
    assert alone.straightness is not None


def test_a_sum_of_clients_is_attacked_as_a_whole(tmp_path: Path) -> None:
    defenses = ["none", {"name": "secure_aggregation", "options": {"clients": 3}}]
    (one, three), provenance = run(scenario(defenses=defenses), tmp_path)
    assert one.truth is not None
    assert three.truth is not None
    assert len(three.truth.images) == 12
    assert torch.equal(three.truth.images[:4], one.truth.images)
    assert three.found.images.shape == three.truth.images.shape
    assert three.protocol.batch_size == 6
    assert provenance.configurations[1].known


def test_sums_of_more_clients_than_there_are_images_for_are_refused(tmp_path: Path) -> None:
    defenses = [{"name": "secure_aggregation", "options": {"clients": 50}}]
    with pytest.raises(lm.LeakmeterError, match=r"sums 50 clients of 4 images.*fewer clients"):
        run(scenario(defenses=defenses), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unaware_attack_is_not_told_how_updates_are_sent(tmp_path: Path) -> None:
    attacks = [{"name": "ig", "options": {"iterations": 3}, "aware": aware} for aware in (1, 0)]
    attacks[1]["label"] = "unaware"
    defenses = [{"name": "top_k", "options": {"keep": 0.1}}]
    aware, unaware = run(scenario(attacks=attacks, defenses=defenses), tmp_path)[0]
    assert (aware.protocol.sparse, unaware.protocol.sparse) == (True, False)
    assert not torch.equal(aware.found.images, unaware.found.images)


def test_a_network_learns_with_its_clients_settings(tmp_path: Path) -> None:
    rows = {}
    for lr in (1e-6, 0.1):
        client = {"examples": 8, "epochs": 5, "lr": lr}
        learning = scenario(client=client, utility={"rounds": 5})
        (row,) = run(learning, tmp_path)[1].configurations
        assert row.utility is not None
        rows[lr] = row.utility.accuracy[0]
    # Faces or not: half of each, so that chance is one half.
    assert rows[1e-6] < 0.75 < rows[0.1]


def test_knobs_are_turned_one_at_a_time(tmp_path: Path) -> None:
    client = {"examples": 4, "epochs": 4, "batch_size": 2, "lr": 0.05}
    base = scenario(client=client, utility={"rounds": 1, "clients": 2})
    turned = knobs(base)
    labels = [label or single.defenses[0].label for label, single in turned]
    assert labels[0] == "none"
    assert {"epochs=1", "epochs=16", "batch_size=1", "batch_size=4", "examples=16"} < set(labels)
    assert sum("noise" in label for label in labels) == 4
    assert sum("top_k" in label for label in labels) == 3
    assert all(single.utility is not None for _, single in turned)
    evidence, provenance = run(base, tmp_path, settings=turned[:1] + turned[-1:])
    assert [each.label for each in provenance.configurations] == ["none", "top_k keep=0.001"]
    assert len(evidence) == 2


def test_noise_knobs_are_sized_by_the_update() -> None:
    base = scenario()
    found = [single for label, single in knobs(base) if "noise" in single.defenses[0].label]
    cache, setting = Cache(), Setting.of(base)
    plain, noisy = (
        sent(cache, setting, protection.build(), 0, False).update
        for protection in (base.defenses[0], found[1].defenses[0])
    )

    def norm(update: lm.Update) -> float:
        names = [name for name, tensor in update.before.items() if tensor.is_floating_point()]
        moves = update.observed(names).values()
        return float(torch.cat([tensor.flatten() for tensor in moves]).norm())

    # As much noise as signal: the norms add up like the sides of a right angle.
    assert norm(noisy) == pytest.approx(2**0.5 * norm(plain), rel=0.1)


def test_knobs_refuse_a_scenario_that_turns_its_own() -> None:
    with pytest.raises(lm.LeakmeterError, match="take vary and defenses out"):
        knobs(scenario(vary={"client.epochs": [1, 2]}))
    with pytest.raises(lm.LeakmeterError, match="take vary and defenses out"):
        knobs(scenario(defenses=["none", "lora"]))


def test_an_attack_that_knows_what_was_left_out_sees_more(photos: lm.data.Dataset) -> None:
    images, labels = photos.images[:4], photos.labels[:4]
    model = lm.models.build("cnn-cifar", classes=photos.classes)
    update = lm.Client(model, images, labels, epochs=3, normalize="photos").train()

    def largest(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {}
        for name, tensor in state.items():
            least = tensor.abs().flatten().kthvalue(round(0.98 * tensor.numel())).values
            kept[name] = tensor * (tensor.abs() > least)
        return kept

    found = {}
    for sparse in (True, False):
        sent = moved(update, largest, sparse=sparse)
        attack = papers.ig(150, lr=1.0, tv=0.005, sign=False)  # after 60 it leads by 1 dB, now by 7
        images_found = attack.run(model, sent, labels=labels).images
        found[sparse] = lm.measure.images(images_found, images).psnr.mean().item()
    assert found[True] > found[False] + 3, found


def test_an_attack_that_ignores_what_was_falsified_sees_more(photos: lm.data.Dataset) -> None:
    images, labels = photos.images[:4], photos.labels[:4]
    fresh = lm.models.build("cnn-cifar", classes=photos.classes)
    settings: dict[str, Any] = {"epochs": 3, "lr": 0.02, "normalize": "photos"}
    client = lm.Client(fresh, images, labels, defenses=[DEFENSES["precode"]()], **settings)
    sent = client.train()
    assert "fc2.encoder.weight" in sent.protocol.distorted
    found = {}
    for distorted in (sent.protocol.distorted, ()):
        protocol = sent.protocol.model_copy(update={"distorted": distorted})
        attack = papers.ig(60, lr=1.0, tv=0.005, sign=False)
        told = attack.run(client.model, replace(sent, protocol=protocol), labels=labels)
        found[bool(distorted)] = lm.measure.images(told.images, images).psnr.mean().item()
    assert found[True] > found[False] + 3, found


def test_labels_of_a_sparse_update_are_read_from_the_rows(photos: lm.data.Dataset) -> None:
    """The bias keeps one entry in five: two of eight."""
    right = []
    for seed in range(4):
        some = torch.randperm(len(photos), generator=torch.Generator().manual_seed(seed))[:8]
        images, labels = photos.images[some], photos.labels[some]
        model = lm.models.build("cnn-cifar", classes=photos.classes, seed=seed)
        defenses = [TopK(keep=0.2)]
        update = lm.Client(model, images, labels, epochs=5, defenses=defenses).train()
        found = Automatic().recover(Problem.of(model, update, None))
        right.append(lm.measure.label_accuracy(found, labels))
    assert sum(right) / len(right) > 0.7, right


def test_labels_that_were_not_sent_are_learned(tmp_path: Path) -> None:
    defenses = [{"name": "withhold", "options": {"last": 1}}]
    (found,), _ = run(scenario(defenses=defenses), tmp_path)
    assert not found.found.labels_known
    assert found.finding is not None


def test_what_unaware_attacks_do_not_use_is_reported_as_ignored(tmp_path: Path) -> None:
    attacks = [{"name": "ig", "options": {"iterations": 2}, "aware": False}]
    defenses = [{"name": "top_k", "options": {"keep": 0.1}}]
    (row,) = run(scenario(attacks=attacks, defenses=defenses), tmp_path)[1].configurations
    assert row.ignored == ("top_k",)
    assert row.adaptive == ()


def test_bytes_are_those_of_one_client_of_a_sum(tmp_path: Path) -> None:
    rounded = {"name": "quantize", "options": {"bits": 8}}
    summed = {"name": "secure_aggregation", "options": {"clients": 2}}
    defenses = [rounded, {"parts": [rounded, summed]}]
    alone, together = run(scenario(defenses=defenses), tmp_path)[1].configurations
    assert alone.bytes_sent == together.bytes_sent


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"client": {"examples": 4, "shares": "gradient"}, "utility": {}},
            "clients that share one gradient are not trained",
        ),
        (
            {"federation": {"rounds": 1, "split": "writer"}},
            "federation.split is writer but faces names no writers",
        ),
        (
            {
                "model": {"name": "resnet8"},
                "client": {"examples": 3, "batch_size": 2, "batchnorm": "train"},
            },
            "a batch has one example",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(lm.LeakmeterError, match=says):
        run(scenario(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
