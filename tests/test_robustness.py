"""Faults a careful reader found: each of these once gave a wrong result or a traceback."""

from __future__ import annotations

import functools
import gzip
import resource
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

import leakmeter as lm
from leakmeter import LeakmeterError, measure, papers
from leakmeter.attacks.adam import Adam
from leakmeter.attacks.distance import Cosine
from leakmeter.attacks.labels import Counts, _round_to_counts, last_layer
from leakmeter.attacks.prior import TotalVariation
from leakmeter.attacks.problem import Problem
from leakmeter.attacks.trajectory import Line
from leakmeter.audits import Scenario, run
from leakmeter.federated import average, federate
from victims import examples, same_bits, tiny, tiny_update


def distance_at_the_truth(client: lm.Client, update: lm.Update, model: nn.Module) -> float:
    """Cosine distance between the update and the gradient of the client's true images."""
    problem = Problem.of(model, update, None)
    predicted = problem.gradient(problem.before, client.images, client.labels)
    return Cosine().against(problem)(predicted).item()


def test_weight_decay_is_part_of_the_prediction() -> None:
    model = tiny()
    client = lm.Client(model, *examples(), lr=0.01, weight_decay=0.1)
    assert distance_at_the_truth(client, client.train(), model) < 1e-4
    assert distance_at_the_truth(client, client.gradient(), model) < 1e-6


def test_layers_that_did_not_move_are_not_matched() -> None:
    """The client froze them, the attacker's copy of the model does not say so."""
    frozen = tiny()
    frozen[0].requires_grad_(False)  # type: ignore[index]
    client = lm.Client(frozen, *examples(), lr=0.01)
    assert distance_at_the_truth(client, client.train(), tiny()) < 1e-4


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5)
        )


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batchnorm_mode_is_read_from_the_running_statistics(mode: str) -> None:
    model = Normed()
    client = lm.Client(model, *examples(), lr=0.01, batchnorm=mode)
    update = client.train()
    bare = update.protocol.model_copy(update={"batchnorm": None})
    told = lm.Update(update.before, update.after, None, 3, bare)
    assert distance_at_the_truth(client, told, model) < 1e-4


def test_batchnorm_mode_may_not_contradict_the_running_statistics() -> None:
    update = lm.Client(Normed(), *examples(), lr=0.01, batchnorm="train").train()
    wrong = update.protocol.model_copy(update={"batchnorm": "eval"})
    with pytest.raises(LeakmeterError, match="running statistics moved"):
        papers.ig(1).run(Normed(), lm.Update(update.before, update.after, None, 3, wrong))


def test_a_single_image_in_a_train_mode_batch_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    client = lm.Client(model, *examples(), batch_size=2, lr=0.1, batchnorm="train")
    with pytest.raises(LeakmeterError, match="batch_size"):
        client.train()


def test_the_layer_that_makes_the_logits_is_found_wherever_it_is_registered() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(144, 5)
            self.aux = nn.Linear(144, 5)

        def forward(self, x: Tensor) -> Tensor:
            self.aux(x.flatten(1))
            logits: Tensor = self.head(x.flatten(1))
            return logits

    torch.manual_seed(0)
    model = TwoHeads()
    images, _ = examples()
    labels = torch.tensor([2, 3, 2])
    update = lm.Client(model, images, labels, lr=0.1).train()
    assert sorted(papers.ig(1).run(model, update).labels.tolist()) == [2, 2, 3]


def test_scaled_logits_are_traced_to_the_last_layer_of_their_width() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.squeeze = nn.Linear(144, 5)
            self.head = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.squeeze(x.flatten(1)).relu())
            return 2 * logits

    torch.manual_seed(0)
    model = Scaled()
    update = lm.Client(model, *examples(), lr=0.1).train()
    assert last_layer(Problem.of(model, update, None)).weight == "head.weight"


def test_label_smoothing_is_taken_out_of_the_counts() -> None:
    images, _ = examples(count=4)
    labels = torch.zeros(4).long()
    client = lm.Client(tiny(), images, labels, lr=0.01, label_smoothing=0.3)
    problem = Problem.of(tiny(), client.gradient(), None)
    assert Counts().recover(problem).tolist() == [0, 0, 0, 0]


def test_wild_counts_are_rounded_at_once() -> None:
    """They are clipped to what is possible; stepping there one by one took minutes."""
    assert _round_to_counts(torch.tensor([1e9, -1e9, 0.1]), 3).tolist() == [0, 0, 0]
    assert _round_to_counts(torch.zeros(4), 6).shape == (6,)


def test_parameters_that_require_grad_leave_no_graph_behind() -> None:
    update = tiny_update()
    before = {name: t.clone().requires_grad_() for name, t in update.before.items()}
    live = lm.Update(before, update.after, None, 3, update.protocol)
    found = papers.sme(2).run(tiny(), live)
    assert not found.images.requires_grad


def test_average_rounds_whole_numbers() -> None:
    def sent(count: int) -> lm.Update:
        seven = {"n": torch.tensor(7)}
        return lm.Update(before=seven, after=seven, num_examples=count)

    for a in range(1, 20):
        for b in range(1, 20):
            assert average([sent(a), sent(b)])["n"] == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_updates_of_another_precision_are_cast_to_the_models(dtype: torch.dtype) -> None:
    update = tiny_update()
    assert update.after is not None
    before, after = (
        {name: t.to(dtype) for name, t in state.items()} for state in (update.before, update.after)
    )
    other = lm.Update(before, after, None, 3, update.protocol)
    assert papers.sme(2).run(tiny(), other).images.dtype == torch.float32
    with pytest.raises(LeakmeterError, match=r"after/0\.weight is torch\.\w+, before is"):
        lm.Update(update.before, after, None, 3)


@functools.cache
def torch_dies_of_bfloat16() -> bool:
    """Some virtual machines announce instructions of the processor that they do not have."""
    layer = "torch.nn.Linear(576, 5).bfloat16()(torch.ones(2, 576).bfloat16())"
    return subprocess.run([sys.executable, "-c", f"import torch; {layer}"]).returncode < 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("recipe", [papers.ig, papers.sme])
def test_half_precision_models_can_be_attacked(dtype: torch.dtype, recipe: Any) -> None:
    if dtype == torch.bfloat16 and torch_dies_of_bfloat16():
        pytest.skip("one fully connected layer in bfloat16 kills torch on this machine")
    model = tiny().to(dtype)
    update = lm.Client(model, *examples(), epochs=2, lr=0.05).train()
    assert recipe(2).run(model, update).images.dtype == dtype


def test_num_examples_may_be_numpys() -> None:
    update = tiny_update()
    same = lm.Update(update.before, update.after, None, np.int64(3))  # type: ignore[arg-type]
    assert same.num_examples == 3
    assert isinstance(same.num_examples, int)


def test_sizes_that_no_machine_holds_are_refused() -> None:
    update = tiny_update()
    crowd = lm.Update(update.before, update.after, None, 10**12, update.protocol)
    with pytest.raises(LeakmeterError, match="num_examples"):
        papers.ig(1).run(tiny(), crowd)


@pytest.mark.parametrize("output", ["tuple", "assertion"])
def test_unusable_forwards_are_named(output: str) -> None:
    class Odd(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            logits = x.flatten(1)
            if output == "assertion":
                raise AssertionError("wrong size")
            return logits, logits

    update = tiny_update()
    with pytest.raises(LeakmeterError, match="model"):
        papers.ig(1).run(Odd(*tiny().children()), update)
    with pytest.raises(LeakmeterError, match="model"):
        lm.Client(Odd(*tiny().children()), *examples())


def test_line_ups_need_distractors() -> None:
    images, labels = examples()
    with pytest.raises(LeakmeterError, match="pool"):
        measure.reidentify(images, images, labels, images[:0], labels[:0])


@pytest.mark.parametrize("count", [2, 3, 8, 30])
def test_intervals_cover_as_often_as_they_say(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    covered = 0
    for _ in range(300):
        found = measure.interval(torch.randn(count, generator=generator, dtype=torch.float64))
        covered += found.low <= 0 <= found.high
    assert 0.9 <= covered / 300 <= 0.985


@pytest.mark.parametrize(
    "make",
    [
        lambda: Line(alpha=7.0),
        lambda: Line(lr=-1.0),
        lambda: TotalVariation(-3.0),
        lambda: TotalVariation(float("nan")),
        lambda: Adam(lr=0.0, iterations=3),
        lambda: Adam(lr=float("nan"), iterations=3),
    ],
)
def test_parts_refuse_nonsense(make: Any) -> None:
    with pytest.raises(LeakmeterError):
        make()


def scenario(**changes: Any) -> Scenario:
    fields: dict[str, Any] = {
        "model": {"name": "own.py:net"},
        "data": {"source": "photos", "size": 16},
        "client": {"examples": 2, "epochs": 2, "lr": 0.05},
        "attacks": [{"name": "sme", "options": {"iterations": 3}}],
    }
    return Scenario.model_validate(fields | changes)


def own_model(folder: Path, activation: str) -> None:
    (folder / "own.py").write_text(
        "from torch import nn\n"
        "def net(classes, channels, size):\n"
        f"    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.{activation}(),\n"
        "        nn.Flatten(), nn.Linear(4 * size * size, classes))\n"
    )


def test_editing_the_factory_makes_the_audit_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for activation in ("ReLU", "Tanh", "ReLU"):
        own_model(tmp_path, activation)
        evidence, _ = run(scenario(), tmp_path / "out")
        found.append(evidence[0].found.images)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_rounds_of_another_network_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    relu, tanh, frozen = tiny(), tiny(), tiny()
    tanh[1] = nn.Tanh()  # type: ignore[operator]
    frozen[0].requires_grad_(False)  # type: ignore[index]
    ends = [
        dict(federate(net, [examples()], rounds=1, cache=tmp_path, lr=0.1).state_dict())
        for net in (relu, tanh, frozen)
    ]
    assert not same_bits(ends[0], ends[1])
    assert torch.equal(ends[2]["0.weight"], frozen.state_dict()["0.weight"])


def test_an_unwritable_cache_is_named_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKMETER_CACHE", "/proc/nowhere")
    with pytest.raises(LeakmeterError, match="LEAKMETER_CACHE"):
        federate(tiny(), [examples()], rounds=1)


def test_clients_that_take_everything_leave_no_line_up(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    images = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), dtype=np.uint8)
    writer = np.arange(8) // 4
    np.savez(path, images=images, labels=np.arange(8) % 2, writer=writer)
    client = {"examples": 4, "count": 2, "pick": "writer"}
    with pytest.raises(LeakmeterError, match="left for line-ups"):
        run(
            scenario(model={"name": "mlp"}, data={"source": f"npz:{path}"}, client=client),
            tmp_path / "out",
        )


def test_images_too_small_to_measure_are_refused_before_the_attack(tmp_path: Path) -> None:
    with pytest.raises(LeakmeterError, match=r"at least 11 pixels"):
        run(scenario(model={"name": "mlp"}, data={"size": 8}), tmp_path / "out")
    assert not list(tmp_path.glob("out/trials/*"))


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"normalize": [[0.5], [0.0]]}, "positive std"),
        ({"normalize": 5}, "client.normalize"),
    ],
)
def test_training_settings_are_checked_in_the_scenario(
    client: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"client": client, "attacks": [{"name": "ig"}]}))
    with pytest.raises(LeakmeterError, match=says) as error:
        Scenario.load(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_zipped_bomb_is_not_unpacked(tmp_path: Path) -> None:
    labels = struct.pack(">II", 0x0801, 1) + bytes(1)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    header = struct.pack(">IIII", 0x0803, 1, 28, 28)
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(header + bytes(784))
        for _ in range(600):
            file.write(bytes(1_000_000))
    was = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LeakmeterError, match="holds more"):
        lm.data.load(f"mnist:{tmp_path}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - was < 300_000


def test_a_deep_header_is_refused(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"version": ' + "9" * 5000 + "}"):
        path = tmp_path / "deep.safetensors"
        save_file({"before/w": torch.zeros(1)}, path, metadata={"leakmeter.update": text})
        with pytest.raises(LeakmeterError, match="header"):
            lm.Update.load(path)


def test_replaced_parts_keep_their_checks() -> None:
    with pytest.raises(LeakmeterError):
        replace(Adam(lr=1.0, iterations=3), iterations=0)


def test_a_damaged_file_in_the_output_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own_model(tmp_path, "ReLU")
    first, _ = run(scenario(), tmp_path / "out")
    for path in (tmp_path / "out").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    again, _ = run(scenario(), tmp_path / "out")
    assert torch.equal(first[0].found.images, again[0].found.images)


def test_modules_are_not_state_dicts() -> None:
    with pytest.raises(LeakmeterError, match="before must be a state dict"):
        lm.Update(before=tiny(), after=tiny(), num_examples=3)  # type: ignore[arg-type]


def test_a_file_without_a_function_is_not_a_model() -> None:
    with pytest.raises(LeakmeterError, match=r"net\.py:FUNCTION"):
        lm.models.build("net.py", classes=3)
