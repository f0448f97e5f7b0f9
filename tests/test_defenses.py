"""What each defense does to a client; differential privacy has its own file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

import leakmeter as lm
from leakmeter import LeakmeterError
from leakmeter.attacks.problem import Problem
from leakmeter.federated import aggregate, average, federate, sent_bytes
from leakmeter.federated.defenses import DEFENSES
from leakmeter.federated.defenses.aggregation import SecureAggregation
from leakmeter.federated.defenses.augment import Augment
from leakmeter.federated.defenses.base import Defense, Guarantee, defended, moved
from leakmeter.federated.defenses.compress import Prune, Quantize, TopK
from leakmeter.federated.defenses.dropout import GradientDropout
from leakmeter.federated.defenses.noise import UpdateNoise
from leakmeter.federated.defenses.parts import Freeze, LoRA, Withhold, layers
from leakmeter.federated.defenses.precode import Precode, VariationalBottleneck
from leakmeter.federated.defenses.soteria import Soteria, sensitivity
from leakmeter.federated.local import train_locally
from leakmeter.state import State
from leakmeter.update import Protocol, rounded
from victims import CLIENTS, examples, same_bits, tiny

OPTIONS: dict[str, dict[str, Any]] = {
    "top_k": {"keep": 0.1},
    "prune": {"keep": 0.1},
    "quantize": {"bits": 4},
    "noise": {"clip": 0.5, "multiplier": 0.01},
    "dropout": {"rate": 0.5},
    "freeze": {"train": 1},
    "withhold": {"last": 1},
}
"""Those without which a defense cannot be made."""


def client(*defenses: Defense, model: nn.Module | None = None, **settings: Any) -> lm.Client:
    settings = {"epochs": 2, "batch_size": 2, "lr": 0.05} | settings
    return lm.Client(tiny() if model is None else model, *examples(), defenses=defenses, **settings)


def shares(*defenses: Defense, **settings: Any) -> list[lm.Update]:
    """Both kinds of update of one client."""
    return [client(*defenses, **settings).train(), client(*defenses, **settings).gradient()]


def movement(update: lm.Update) -> State:
    names = list(update.gradient or update.before)
    return {n: t for n, t in update.observed(names).items() if t.is_floating_point()}


def flat(state: State) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in state.values()])


def norm(state: State) -> float:
    return float(flat(state).norm())


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(name: str) -> Defense:
    if name == "dp_sgd":
        pytest.importorskip("opacus")
    return DEFENSES[name](**OPTIONS.get(name, {}))


# What all of them have in common


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("kind", ["train", "gradient"])
def test_every_defense_runs_reproducibly_and_changes_no_model(name: str, kind: str) -> None:
    defense, model = made(name), tiny()
    was = {key: tensor.clone() for key, tensor in model.state_dict().items()}

    def send(seed: int) -> lm.Update:
        made_by = client(defense, model=model, seed=seed)
        update: lm.Update = getattr(made_by, kind)()
        update.check(made_by.model)
        Problem.of(made_by.model, update, None)
        return update

    if (name, kind) == ("dp_sgd", "gradient"):
        with pytest.raises(LeakmeterError, match=r"one shared gradient.*send weights"):
            send(0)
    else:
        assert send(0).fingerprint() == send(0).fingerprint()
        assert sent_bytes(send(0)) > 0
    assert same_bits(was, dict(model.state_dict()))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["prune", "noise", "dp_sgd", "precode", "dropout", "augment"])
def test_seeds_draw_differently(name: str) -> None:
    # One batch of all examples: what differs is the defense's.
    updates = [client(made(name), batch_size=3, seed=seed).train() for seed in (0, 1)]
    assert norm(
        {n: t - movement(updates[1])[n] for n, t in movement(updates[0]).items()}
    ) > 0.01 * norm(movement(updates[0]))


@pytest.mark.parametrize("cls", DEFENSES.values())
def test_every_defense_says_what_it_is(cls: type[Defense]) -> None:
    first = (cls.__doc__ or "").splitlines()[0]
    assert first.endswith(".")
    assert len(first) > 30
    assert cls.known.endswith(".")
    assert not cls.adaptive or cls.adaptive.endswith(".")
    assert (cls is Augment) == (not cls.adaptive)


@pytest.mark.parametrize("settings", CLIENTS.values(), ids=CLIENTS)
def test_without_defenses_training_is_a_plain_loop_to_the_last_bit(
    settings: dict[str, Any],
) -> None:
    images, labels = examples(count=5)
    made_by = lm.Client(tiny(), images, labels, epochs=2, batch_size=2, seed=3, **settings)
    model = tiny()
    given = {n: v for n, v in settings.items() if n != "optimizer"}
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(
        settings.get("optimizer", "sgd"), torch.optim.SGD
    )
    optimizer: torch.optim.Optimizer = kind(model.parameters(), **given)
    order = draws(3)
    for _ in range(2):
        for batch in torch.randperm(5, generator=order).split(2):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    after = made_by.train().after
    assert after is not None
    assert same_bits(after, dict(model.state_dict()))
    fresh = tiny()
    gradient = torch.autograd.grad(
        functional.cross_entropy(fresh(images), labels), list(fresh.parameters())
    )
    shared = made_by.gradient().gradient
    assert shared is not None
    assert all(torch.equal(a, b) for a, b in zip(shared.values(), gradient, strict=True))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TopK(0), "keep is 0"),
        (lambda: TopK(1.5), "keep is 1.5"),
        (lambda: Prune(float("nan")), "keep is nan"),
        (lambda: Quantize(0), "bits is 0"),
        (lambda: Quantize(17), "bits is 17"),
        (lambda: UpdateNoise(0, 1), "clip is 0"),
        (lambda: UpdateNoise(1, -1), "multiplier is -1"),
        (lambda: UpdateNoise(1, 1, "uniform"), "kind is 'uniform'"),  # type: ignore[arg-type]
        (lambda: UpdateNoise(1, 1, delta=0), "delta is 0"),
        (lambda: DEFENSES["dp_sgd"](clip=0), "clip is 0"),  # type: ignore[call-arg]
        (lambda: Soteria(1.1), "prune is 1.1"),
        (lambda: Precode(width=0), "width is 0"),
        (lambda: GradientDropout(1), "rate is 1"),
        (lambda: Augment(shift=1), "shift is 1"),
        (lambda: Augment(rotate=200), "rotate is 200"),
        (lambda: SecureAggregation(1), "clients is 1"),
        (lambda: Freeze(0), "train is 0"),
        (lambda: Withhold(0), "last is 0"),
        (lambda: LoRA(rank=0), "rank is 0"),
        (lambda: client(Freeze(2)), "train is 2 but the network has 2 layers"),
        (lambda: client(Withhold(2)), "last is 2 but the network has 2 layers"),
        (lambda: client(Soteria(layer="fc")), "unknown trained fully connected layer 'fc'"),
        (lambda: client(Soteria(), Freeze(1), model=convolutional()), "no trained fully connected"),
        (lambda: client(Precode(), model=convolutional()), "no fully connected layer"),
        (lambda: client(LoRA(), model=tiny().requires_grad_(False)), "no trained nn.Linear"),
    ],
)
def test_what_cannot_be_done_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(LeakmeterError, match=says):
        make()


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 5, 10), nn.Flatten())


def test_defenses_are_values() -> None:
    assert TopK(0.1) == TopK(0.1) != TopK(0.2)
    assert repr(LoRA()) == "LoRA(rank=4, alpha=8.0)"
    with pytest.raises(FrozenInstanceError):
        TopK(0.1).keep = 0.2  # type: ignore[misc]


# Few entries, few bits


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.5, 1.0])
def test_top_k_keeps_the_largest_entries_as_they_are(keep: float) -> None:
    for full, update in zip(shares(), shares(TopK(keep)), strict=True):
        assert update.protocol.sparse
        before, after = movement(full), movement(update)
        for name, tensor in after.items():
            kept = tensor != 0
            # ReLU leaves dead features: with all entries kept, some are zero all the same.
            most = min(round(keep * tensor.numel()), int(before[name].count_nonzero()))
            assert kept.sum() == max(1, most)
            assert torch.equal(tensor[kept], before[name][kept])
            if not kept.all():
                assert tensor[kept].abs().min() >= before[name][~kept].abs().max()
        if update.after is not None:
            assert full.after is not None
            for name, tensor in update.after.items():
                kept = after[name] != 0
                assert torch.equal(tensor[kept], full.after[name][kept])
                assert torch.equal(tensor[~kept], update.before[name][~kept])


def test_pruning_keeps_random_entries_unscaled() -> None:
    for full, update in zip(shares(), shares(Prune(0.1)), strict=True):
        assert update.protocol.sparse
        weight, whole = movement(update)["3.weight"], movement(full)["3.weight"]
        kept = weight != 0
        # Some of the kept entries are zero themselves: ReLU leaves dead features.
        assert 0 < kept.sum() <= round(0.1 * weight.numel())
        assert torch.equal(weight[kept], whole[kept])
        assert whole[kept].abs().mean() < 2 * whole[whole != 0].abs().mean()


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_quantizing_leaves_few_levels(bits: int) -> None:
    weights, gradient = shares(Quantize(bits))
    assert weights.protocol.bits == gradient.protocol.bits == bits
    assert gradient.gradient is not None
    full = client().gradient().gradient
    assert full is not None
    for name, tensor in gradient.gradient.items():
        assert len(tensor.unique()) <= max(2**bits - 1, 3)
        assert torch.equal(tensor, rounded(full[name], bits))
        if bits > 1:  # the mean magnitude changes when it spreads to all that is not zero
            torch.testing.assert_close(rounded(tensor, bits), tensor, rtol=1e-5, atol=0)
    for name, tensor in movement(weights).items():
        expected = rounded(movement(client().train())[name], bits)
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-7)


def test_composition_follows_the_order() -> None:
    both = shares(TopK(0.1), Quantize(4))
    assert all(update.protocol.sparse and update.protocol.bits == 4 for update in both)
    noisy = shares(TopK(0.1), Quantize(4), UpdateNoise(1.0, 0.1))
    for update in noisy:
        assert not update.protocol.sparse
        assert update.protocol.bits is None
        assert (flat(movement(update)) != 0).all()
    for update in shares(UpdateNoise(1.0, 0.1), TopK(0.1)):
        assert update.protocol.sparse
        assert (flat(movement(update)) == 0).double().mean() > 0.85


def test_bytes_on_the_wire() -> None:
    def sent(values: Tensor, **protocol: Any) -> int:
        state = {"w": values, "frozen": torch.ones(100), "n": torch.tensor(3)}
        after = {"w": torch.zeros_like(values), "frozen": torch.ones(100), "n": torch.tensor(4)}
        settings = Protocol(**protocol)
        weights = sent_bytes(lm.Update(before=state, after=after, protocol=settings))
        shared = {"w": values, "frozen": torch.zeros(100)}
        gradient = lm.Update(before=state, gradient=shared, protocol=settings)
        assert weights == sent_bytes(gradient) + 8  # the counter is one 64-bit number
        return sent_bytes(gradient)

    ten = torch.arange(10.0)
    assert sent(ten) == 40
    assert sent(ten.half()) == 20
    assert sent(ten, bits=3) == 4 + 4  # 30 bits and a step size
    few = torch.zeros(1000)
    few[:5] = 1
    assert sent(few, sparse=True) == 5 * 4 + 5 * 4  # places
    few[:50] = 1
    assert sent(few, sparse=True) == 125 + 50 * 4  # a bitmap
    assert sent(few, sparse=True, bits=1) == 125 + 7 + 4


# Noise


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_update_is_clipped_and_gets_noise_of_the_stated_size(kind: Any) -> None:
    for full in shares():
        size = norm(movement(full))
        for clip in (size / 3, size * 3):
            clipped = movement(UpdateNoise(clip, 0, kind).send(full, tiny(), draws()))
            assert norm(clipped) == pytest.approx(min(clip, size), rel=1e-4)
            noisy = movement(UpdateNoise(clip, 0.5, kind).send(full, tiny(), draws()))
            noise = flat(noisy) - flat(clipped)
            assert noise.std().item() == pytest.approx(0.5 * clip, rel=0.05)
            assert abs(noise.mean()) < 0.1 * 0.5 * clip
            # 0.8 of the deviation for Gaussian noise, 0.71 for Laplace.
            ratio = (noise.abs().mean() / noise.std()).item()
            assert ratio == pytest.approx(0.798 if kind == "gaussian" else 0.707, abs=0.02)


def test_noise_leaves_a_network_that_works() -> None:
    model = lm.models.build("resnet8", classes=5, channels=1, size=12)
    update = client(UpdateNoise(1.0, 1.0), model=model, batchnorm="train", batch_size=3).train()
    assert update.after is not None
    variances = [t for n, t in update.after.items() if n.endswith("running_var")]
    assert variances
    assert all((tensor >= 0).all() for tensor in variances)
    counters = [n for n in update.before if n.endswith("num_batches_tracked")]
    assert all(update.after[name] == update.before[name] + 2 for name in counters)


def test_what_is_not_changed_is_sent_as_it_was_learned() -> None:
    full = client().train()
    assert full.after is not None
    same = moved(full, lambda movement: movement, sparse=True)
    assert same.after is not None
    assert same_bits(same.after, full.after)
    halved = moved(full, lambda movement: {n: t / 2 for n, t in movement.items()})
    torch.testing.assert_close(
        flat(movement(halved)), flat(movement(full)) / 2, rtol=1e-3, atol=1e-7
    )


# Parts of the network


def test_frozen_layers_do_not_move() -> None:
    for update in shares(Freeze(1)):
        problem = Problem.of(client(Freeze(1)).model, update, None)
        assert list(problem.observed) == ["3.weight", "3.bias"]
    assert list(client(Freeze(1)).gradient().gradient or {}) == ["3.weight", "3.bias"]


def test_withheld_layers_are_trained_but_not_sent() -> None:
    full, (weights, gradient) = client().train(), shares(Withhold(1))
    assert weights.after is not None
    assert full.after is not None
    for name in ("3.weight", "3.bias"):
        assert torch.equal(weights.after[name], weights.before[name])
        assert gradient.gradient is not None
        assert not gradient.gradient[name].any()
    # The head was trained at home: the layers that are sent moved as they do with it.
    assert torch.equal(weights.after["0.weight"], full.after["0.weight"])
    assert list(Problem.of(tiny(), weights, None).observed) == ["0.weight", "0.bias"]


def test_layers_are_what_owns_parameters() -> None:
    assert layers(tiny()) == [["0.weight", "0.bias"], ["3.weight", "3.bias"]]
    model = lm.models.build("resnet8", classes=5, channels=1, size=12)
    norm_layer = next(names for names in layers(model) if "bn1.weight" in names)
    assert "bn1.running_mean" in norm_layer
    names = [name for layer in layers(model) for name in layer]
    assert sorted(names) == sorted(model.state_dict())
    low_rank = layers(LoRA().network(tiny()))
    assert [len(layer) for layer in low_rank] == [4, 4]


def test_lora_moves_only_what_it_added() -> None:
    model = client(LoRA(rank=2)).model
    images = examples()[0]
    torch.testing.assert_close(model(images), tiny()(images))
    update = client(LoRA(rank=2), epochs=5).train()
    problem = Problem.of(model, update, None)
    added = ["0.down.weight", "0.up.weight", "3.down.weight", "3.up.weight"]
    assert list(problem.observed) == added
    assert update.after is not None
    assert update.after["3.down.weight"].shape == (2, 576)
    model.load_state_dict(update.after)
    plain = tiny()
    state = plain.state_dict()
    state["3.weight"] += 4 * update.after["3.up.weight"] @ update.after["3.down.weight"]
    kernel = torch.einsum(
        "or,rikl->oikl", update.after["0.up.weight"][..., 0, 0], update.after["0.down.weight"]
    )
    state["0.weight"] += 4 * kernel
    plain.load_state_dict(state)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-4, atol=1e-5)
    assert sent_bytes(update) < sent_bytes(client().train()) / 2


def test_lora_of_a_grouped_strided_convolution() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, padding_mode="reflect"),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    model(examples()[0])
    update = client(LoRA(rank=3), model=model).train()
    assert update.before["1.down.weight"].shape == (6, 2, 3, 3)
    assert update.before["1.up.weight"].shape == (6, 3, 1, 1)
    assert movement(update)["1.up.weight"].any()


def test_a_module_used_twice_gets_one_addition() -> None:
    shared = nn.Conv2d(1, 1, 3, padding=1)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Flatten(), nn.Linear(144, 5))
    extended = LoRA().network(model)
    assert isinstance(extended, nn.Sequential)
    assert extended[0] is extended[2]
    assert extended[0] is not model[0]


@pytest.mark.parametrize("defense", [LoRA(), Precode(), Freeze(1)])
def test_changed_networks_can_be_attacked(defense: Defense) -> None:
    made_by = client(defense)
    update = made_by.train()
    problem = Problem.of(copy.deepcopy(made_by.model), update, None)
    x = torch.rand((3, *problem.shape), generator=draws()).requires_grad_()
    gradient = problem.gradient(problem.ends()[-1], x, examples()[1])
    score = sum(t.square().sum() for t in gradient.values())
    assert isinstance(score, Tensor)
    slope = torch.autograd.grad(score, x)[0]
    assert slope.isfinite().all()
    assert slope.any()


def test_rounds_train_the_network_of_the_defenses(tmp_path: Path) -> None:
    parts = [examples(), examples(count=4)]

    def trained(rounds: int, *defenses: Defense) -> nn.Module:
        return federate(
            tiny(), parts, rounds=rounds, cache=tmp_path, defenses=defenses, lr=0.1, epochs=2
        )

    for defenses in ([LoRA()], [Freeze(1)], [Precode(), Freeze(2)], [Freeze(1), LoRA()]):
        two = trained(2, *defenses)
        start = defended(tiny(), defenses)
        assert list(two.state_dict()) == list(start.state_dict())
        assert defended(two, defenses) is two
        assert [p.requires_grad for p in two.parameters()] == [
            p.requires_grad for p in start.parameters()
        ]
        still = {n for n, p in start.named_parameters() if not p.requires_grad}
        changed = {
            n for n, t in two.state_dict().items() if not torch.equal(t, start.state_dict()[n])
        }
        assert changed
        assert not changed & still
        made_by = lm.Client(two, *examples(), lr=0.1, defenses=defenses)
        assert made_by.model is two
        # From the cache, and again without it.
        assert same_bits(dict(trained(2, *defenses).state_dict()), dict(two.state_dict()))
    kept = {path.name for path in tmp_path.iterdir()}
    assert len(kept) == 4
    trained(1, TopK(0.5))
    trained(1, TopK(0.25))
    trained(1)
    assert len(list(tmp_path.iterdir())) == 7


# Soteria


class Shifted(nn.Module):
    """Features ``scale * x + offset``: slopes and ratios are known."""

    def __init__(self, scale: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.fc = nn.Linear(len(scale), 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.get_buffer("scale") * x.flatten(1) + self.get_buffer("offset"))
        return out


def test_slopes_of_features_are_estimated() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 10), nn.Tanh(), nn.Linear(10, 5))
    images = examples(count=64)[0]
    features, slopes = sensitivity(model, model[3], images, draws())
    values = model[:3](images).detach()
    torch.testing.assert_close(features, values.square().mean(0).sqrt())
    weight = model.get_parameter("1.weight")
    exact = (1 - values.square()).square().mean(0) * weight.square().sum(1)
    torch.testing.assert_close(slopes, exact.sqrt().detach(), rtol=0.2, atol=0)


def test_soteria_cuts_the_features_that_move_the_image_most() -> None:
    # Four features with the same slope and size, but for one thing each.
    scale = torch.ones(144)
    offset = torch.zeros(144)
    scale[:36], offset[36:72] = 0.01, 10.0
    torch.manual_seed(0)
    model = Shifted(scale, offset)
    update = client(Soteria(prune=0.5), model=model).gradient()
    columns = movement(update)["fc.weight"].any(0)
    # |r| / |dr/dx| is |x| for the first and the last two quarters, but |x + 10| for the second.
    assert not columns[36:72].any()
    assert columns.sum() == 72
    assert update.protocol.sparse


@pytest.mark.parametrize("prune", [0.0, 0.3, 0.8, 1.0])
def test_soteria_leaves_zero_columns(prune: float) -> None:
    full, update = client().gradient(), client(Soteria(prune)).gradient()
    was, now = movement(full)["3.weight"], movement(update)["3.weight"]
    live = int(was.any(0).sum())
    assert now.any(0).sum() == live - round(prune * live)
    kept = now.any(0)
    assert torch.equal(now[:, kept], was[:, kept])
    assert torch.equal(movement(update)["3.bias"], movement(full)["3.bias"])
    assert torch.equal(movement(update)["0.weight"], movement(full)["0.weight"])


def test_soteria_over_several_steps_says_what_is_zero() -> None:
    once = client(Soteria(), epochs=1, batch_size=3).train()
    assert once.protocol.sparse
    assert (~movement(once)["3.weight"].any(0)).double().mean() >= 0.8
    decayed = client(Soteria(), weight_decay=0.1).train()
    assert not decayed.protocol.sparse


def test_soteria_leaves_running_statistics_alone() -> None:
    model = lm.models.build("resnet8", classes=5, channels=1, size=12)
    settings: dict[str, Any] = {"batchnorm": "train", "batch_size": 3, "epochs": 1}
    plain = client(model=model, **settings).train().after
    cut = client(Soteria(), model=model, **settings).train().after
    assert plain is not None
    assert cut is not None
    names = [name for name in plain if "running" in name or "tracked" in name]
    assert names
    assert all(torch.equal(plain[name], cut[name]) for name in names)


# Precode


def test_the_bottleneck_draws_only_while_a_client_trains() -> None:
    made_by = client(Precode(width=8))
    model, images = made_by.model, examples()[0]
    assert torch.equal(model(images), model(images))
    steps: list[State] = []
    update = made_by.train(on_step=steps.append)
    assert len(steps) == 4
    inputs, labels = examples()
    train_locally(
        model, inputs, labels, made_by.protocol, seed=0, defenses=[Precode(width=8)], draws=draws()
    )
    bottleneck = next(m for m in model.modules() if isinstance(m, VariationalBottleneck))
    assert bottleneck.draws is None
    assert bottleneck.divergence is None
    weight = movement(update)["3.encoder.weight"]
    assert weight[:8].any()
    assert weight[8:].any()  # the logarithms of the variance, which the mean knows nothing of
    assert same_bits(dict(Precode(width=8).network(tiny()).state_dict()), update.before)


def test_the_divergence_is_that_of_normal_distributions() -> None:
    bottleneck = VariationalBottleneck(nn.Linear(6, 5), width=3)
    bottleneck.draws = draws()
    features = torch.randn((7, 6), generator=draws(1))
    bottleneck(features)
    mean, log_variance = bottleneck.encoder(features).chunk(2, dim=-1)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0))
    assert bottleneck.divergence is not None
    torch.testing.assert_close(bottleneck.divergence, expected.sum(1).mean())
    assert Precode(weight=2.0).penalty(bottleneck) == 2 * bottleneck.divergence


def test_precode_learns_and_its_penalty_counts() -> None:
    images, labels = examples()

    def trained(weight: float) -> tuple[float, float, float]:
        """Loss before and after, and the divergence after."""
        made_by = client(Precode(weight=weight), epochs=100, batch_size=3, lr=0.02)
        model, after = made_by.model, made_by.train().after
        before = functional.cross_entropy(model(images), labels).item()
        assert after is not None
        model.load_state_dict(after)
        bottleneck = next(m for m in model.modules() if isinstance(m, VariationalBottleneck))
        bottleneck.draws = draws()
        loss = functional.cross_entropy(model(images), labels).item()
        assert bottleneck.divergence is not None
        return before, loss, bottleneck.divergence.item()

    before, loss, divergence = trained(1e-3)
    assert loss < before / 10
    assert trained(3.0)[2] < divergence / 10


def test_a_summed_loss_gets_a_summed_penalty() -> None:
    # Three times the mean loss, with a third of the step, is the same training.
    mean = client(Precode(weight=1.0), batch_size=3, lr=0.03).train()
    total = client(Precode(weight=1.0), batch_size=3, lr=0.01, reduction="sum").train()
    torch.testing.assert_close(flat(movement(mean)), flat(movement(total)), rtol=1e-3, atol=1e-6)


# Dropout and augmentation


def test_gradient_dropout_is_right_on_average() -> None:
    full = flat(movement(client().gradient()))
    each = [
        flat(movement(client(GradientDropout(0.75), seed=seed).gradient())) for seed in range(200)
    ]
    live = full != 0
    zeros = torch.stack([one[live] == 0 for one in each]).double().mean()
    assert zeros.item() == pytest.approx(0.75, abs=0.01)
    nonzero = each[0] != 0
    torch.testing.assert_close(each[0][nonzero], 4 * full[nonzero], rtol=1e-5, atol=0)
    error = (torch.stack(each).mean(0) - full).norm() / full.norm()
    # The deviation of a mean of 200 is sqrt(3 / 200) of the value.
    assert error == pytest.approx((3 / 200) ** 0.5, rel=0.2)


def test_dropped_entries_are_sparse_after_one_step_only() -> None:
    assert client(GradientDropout(0.5)).gradient().protocol.sparse
    assert client(GradientDropout(0.5), epochs=1, batch_size=3).train().protocol.sparse
    assert not client(GradientDropout(0.5)).train().protocol.sparse
    decayed = client(GradientDropout(0.5), epochs=1, batch_size=3, weight_decay=0.1)
    assert not decayed.train().protocol.sparse
    assert not client(UpdateNoise(1, 1), GradientDropout(0.5)).gradient().protocol.sparse


def test_augmented_images_are_other_valid_images() -> None:
    images = lm.data.load("photos", size=32).images[:40]
    changed = Augment().images(images, draws())
    assert changed.shape == images.shape
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert torch.equal(changed, Augment().images(images, draws()))
    assert not torch.equal(changed, Augment().images(images, draws(1)))
    # Half as far from the original as a flat gray image would be, and more.
    error = (changed - images).square().mean((1, 2, 3))
    assert (error > images.var((1, 2, 3)) / 2).all()
    nothing = Augment(shift=0, rotate=0, contrast=0, brightness=0)
    torch.testing.assert_close(nothing.images(images, draws()), images, rtol=0, atol=1e-5)


def test_a_shift_is_a_shift() -> None:
    image = torch.zeros(1, 1, 8, 12)
    image[0, 0, 4, 6] = 1
    policy = Augment(shift=0.25, rotate=0, contrast=0, brightness=0)
    found = {
        tuple((policy.images(image, draws(seed))[0, 0] > 0.99).nonzero()[0].tolist())
        for seed in range(40)
    }
    assert found == {(2, 3), (2, 9), (6, 3), (6, 9)}


def test_a_turn_keeps_its_shape_in_any_frame() -> None:
    # A bar of 9 pixels across a frame that is not square, turned upright.
    image = torch.zeros(1, 1, 15, 21)
    image[0, 0, 7, 6:15] = 1
    policy = Augment(shift=0, rotate=90, contrast=0, brightness=0)
    upright = torch.zeros(1, 1, 15, 21)
    upright[0, 0, 3:12, 10] = 1
    torch.testing.assert_close(policy.images(image, draws()), upright, rtol=0, atol=1e-4)


# Secure aggregation


@pytest.mark.parametrize("kind", ["train", "gradient"])
def test_the_server_sees_the_mean_of_all(kind: str) -> None:
    images, labels = examples(count=9)
    parts = [slice(0, 2), slice(2, 5), slice(5, 9)]
    clients = [
        lm.Client(tiny(), images[part], labels[part], lr=0.05, batch_size=2, defenses=[Freeze(1)])
        for part in parts
    ]
    updates = [getattr(each, kind)() for each in clients]
    seen = aggregate(updates)
    assert seen.num_examples == 9
    moves = [movement(update) for update in updates]
    for name, tensor in movement(seen).items():
        expected = (2 * moves[0][name] + 3 * moves[1][name] + 4 * moves[2][name]) / 9
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-7)
    if kind == "train":
        assert seen.protocol.batch_size == 6
        assert seen.after is not None
        assert same_bits(seen.after, average(updates))
        assert torch.equal(seen.after["0.weight"], seen.before["0.weight"])
    else:
        whole = lm.Client(tiny(), images, labels, defenses=[Freeze(1)]).gradient()
        torch.testing.assert_close(seen.gradient, whole.gradient)
    assert SecureAggregation(3).clients == 3
    assert TopK(0.1).clients == 1


def test_sums_forget_how_each_was_encoded() -> None:
    updates = [client(TopK(0.01), Quantize(4), seed=seed).train() for seed in range(3)]
    seen = aggregate(updates)
    assert seen.protocol.sparse
    assert seen.protocol.bits is None
    zero = torch.stack([flat(movement(update)) == 0 for update in updates]).all(0)
    assert torch.equal(flat(movement(seen)) == 0, zero)


def test_only_clients_of_the_same_round_are_added_up() -> None:
    ours, gradient = shares()
    other = lm.Client(lm.models.build("mlp", classes=5, channels=1, size=12), *examples()).train()
    retrained = client(model=federate(tiny(), [examples()], rounds=1, lr=0.1)).train()
    for updates, says in (
        ([], "updates is empty"),
        ([ours, gradient], "one has weights, one gradients"),
        ([ours, other], "other weights"),
        ([ours, retrained], "other weights"),
        ([ours, client(lr=0.1).train()], "another protocol"),
        ([gradient, client(Freeze(1)).gradient()], "other parameters"),
    ):
        with pytest.raises(LeakmeterError, match=says):
            aggregate(updates)


def test_most_defenses_prove_nothing() -> None:
    protocol = Protocol(epochs=1, batch_size=2)
    proven = {name for name in DEFENSES if name != "dp_sgd" and made(name).guarantee(protocol, 4)}
    assert proven == {"noise"}
    assert UpdateNoise(1, 1, "laplace").guarantee(protocol, 4) is None
    assert UpdateNoise(1, 0).guarantee(protocol, 4) is None
    found = UpdateNoise(2.0, 1.0).guarantee(Protocol(), 4)
    assert isinstance(found, Guarantee)
    assert found.protects == "client"
