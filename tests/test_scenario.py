from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from leakmeter import LeakmeterError
from leakmeter.audits import Scenario, run

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_resolve_and_resolved_ones_stay_the_same(path: Path, tmp_path: Path) -> None:
    scenario = Scenario.load(path)
    again = Scenario.load(written(tmp_path, scenario.dump()))
    assert again == scenario
    assert again.dump() == scenario.dump()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    for attack in content["attacks"]:
        attack["options"]["iterations"] = 2
    if "federation" in content:
        content["federation"]["rounds"] = 1
    if "utility" in content:
        content["utility"] |= {"rounds": 1, "clients": 2, "seeds": 1}
    scenario = Scenario.model_validate(content)
    evidence, provenance = run(scenario, tmp_path)
    rows = len(scenario.settings()) * len(scenario.defenses)
    assert len(evidence) == rows * scenario.client.count * len(scenario.attacks)
    assert len(provenance.configurations) == rows
    assert provenance.title == scenario.name


def test_defaults_are_filled_in() -> None:
    resolved = yaml.safe_load(
        Scenario.model_validate({"attacks": [{"name": "sme", "options": {"tv": 0.1}}]}).dump()
    )
    assert resolved["client"]["normalize"] == "photos"
    assert resolved["attacks"][0] == {
        "name": "sme",
        "label": "sme",
        "labels": "recovered",
        "aware": True,
        "options": {"iterations": 1000, "lr": 1.0, "tv": 0.1, "alpha": 0.5, "decay": True},
    }
    own = {"data": {"source": "npz:x.npz"}, "attacks": [{"name": "ig"}]}
    assert Scenario.model_validate(own).client.normalize is None


def test_all_mistakes_are_reported_at_once_with_path_and_nearest_name(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        modle: {name: mlp}
        model: {name: cnn-cifr, seed: -1}
        data: {source: fotos}
        client: {epoch: 5, lr: zero, optimizer: adamm, normalize: cifar1000}
        federation: {rounds: 0, splitt: iid}
        attacks:
          - {name: sme, options: {iteration: 5}}
          - {name: smee}
          - {name: ig, options: {iterations: many}}
          - {name: ig, options: {iterations: 0}}
        """,
    )
    with pytest.raises(LeakmeterError) as error:
        Scenario.load(path)
    lines = str(error.value).splitlines()
    expected = [
        "modle: unknown field 'modle': did you mean 'model'?",
        "model.name: unknown model 'cnn-cifr': did you mean 'cnn-cifar'?",
        "model.seed: input should be greater than or equal to 0",
        "data.source: unknown dataset 'fotos': did you mean 'photos'?",
        "client.epoch: unknown field 'epoch': did you mean 'epochs'?",
        "client.lr: input should be a valid number",
        "client.optimizer: unknown value 'adamm': did you mean 'adam'?",
        "client.normalize: unknown normalization 'cifar1000': did you mean 'cifar100'?",
        "federation.rounds: input should be greater than 0",
        "federation.splitt: unknown field 'splitt': did you mean 'split'?",
        "attacks.0: unknown option of sme 'iteration': did you mean 'iterations'?",
        "attacks.1: unknown attack 'smee': did you mean 'sme'?",
        "attacks.2: options.iterations: input should be a valid integer",
        "attacks.3: iterations is 0: use 1 or more",
    ]
    for part in expected:
        assert any(part in line for line in lines), f"{part!r} not in {error.value}"
    assert len(lines) == len(expected)
    assert all(line.startswith(f"{path}: ") for line in lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold fields"),
        ("- 1", "must hold fields"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
        ("attacks: []", "attacks is empty"),
        ("attacks: [{label: x}]", "attacks.0.name: field required"),
        ("attacks: [{name: ig}, {name: ig}]", "two are called 'ig'"),
        ("defenses: []", "defenses is empty"),
        ("defenses: [top]", "unknown defense 'top': did you mean 'top_k'"),
        ("defenses: [top_k]", "options.keep: top_k needs it"),
        ("defenses: [{name: top_k, options: {keep: 2}}]", "keep is 2.0"),
        ("defenses: [{name: top_k, options: {keeep: 0.1}}]", "did you mean 'keep'"),
        ("defenses: [none, none]", "two are called 'none'"),
        ("defenses: [{label: none, name: lora}]", "none is what the absence of defenses is called"),
        ("vary: {epochs: [1, 2]}", "vary.epochs: vary fields of model, data, client"),
        ("vary: {client.epochs: []}", "vary.client.epochs: give a list"),
        ("vary: {client.epochs: [1, 1]}", "vary.client.epochs: a value is listed twice"),
        ("vary: {client.epoch: [1]}", "did you mean 'epochs'"),
        ("vary: {client.epochs: [1, 0]}", "client.epochs: input should be greater than 0"),
        ("utility: {test: 1}", "utility.test: input should be less than 1"),
    ],
)
def test_unusable_files_are_named(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(LeakmeterError, match=says):
        Scenario.load(written(tmp_path, text))


def test_names_of_before_are_still_read() -> None:
    old = Scenario.model_validate(
        {
            "defences": ["none", {"name": "quantise", "options": {"bits": 8}}],
            "attacks": [
                {"name": "retrace", "options": {"switching": 0.1}},
                {"name": "sapag", "options": {"start": "grey"}},
            ],
        }
    )
    new = Scenario.model_validate(
        {
            "defenses": ["none", {"name": "quantize", "options": {"bits": 8}}],
            "attacks": [
                {"name": "retrace", "options": {"relu_curvature": 0.1}},
                {"name": "sapag", "options": {"start": "gray"}},
            ],
        }
    )
    assert old.attacks == new.attacks
    assert [each.parts for each in old.defenses] == [each.parts for each in new.defenses]
    assert "defences" not in old.dump()
