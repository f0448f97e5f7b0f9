"""Differentially private training with Opacus."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, TensorDataset

from leakmeter.errors import LeakmeterError, require
from leakmeter.federated.defenses.accounting import opacus, sampled_gaussian
from leakmeter.federated.defenses.base import Defense, Guarantee
from leakmeter.federated.local import Training, loss_of, output_shape, set_mode
from leakmeter.update import Protocol


@dataclass(frozen=True)
class DPSGD(Defense):
    """Every example's gradient is clipped, and every step gets noise (Abadi et al. 2016).

    Trained by Opacus. A batch is a Poisson sample: each example is in it with probability
    ``q = min(1, B / N)``, whatever the others do, so batches differ in size and may be empty. An
    epoch is still ``ceil(N / B)`` of them. The sum of the clipped gradients, with noise of standard
    deviation ``noise * clip`` in every entry, is divided by the expected size of a batch.

    The guarantee hides whether one example was there.

    Attributes:
        clip: the largest norm of the gradient of an example.
        noise: standard deviation of the noise in an entry, in units of ``clip``.
        delta: probability that the guarantee does not hold.
    """

    known: ClassVar[str] = "The server knows the clipping norm, the noise level and the sampling."
    adaptive: ClassVar[str] = (
        "For attacks that match by cosine, that is the most likely estimate under Gaussian noise "
        "of unknown size; that examples are clipped and sampled one by one is not modeled."
    )

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        require("clip", self.clip, above=0)
        require("noise", self.noise)
        require("delta", self.delta, above=0, most=0.5)

    def check(self, model: nn.Module, protocol: Protocol, defenses: Sequence[Defense]) -> None:
        """Check that Opacus is installed, can train the network, and is alone in changing it."""
        opacus()
        if protocol.epochs is None:
            raise LeakmeterError(
                "dp_sgd protects training, not one shared gradient: let the client send weights "
                "after one epoch with a batch_size of all its examples"
            )
        for other in defenses:
            if other is not self and any(
                getattr(type(other), part) is not getattr(Defense, part)
                for part in ("training", "penalty", "gradient")
            ):
                raise LeakmeterError(
                    f"dp_sgd cannot be combined with {type(other).__name__}, which changes the "
                    "local steps too: use one of them"
                )
        _check_layers(model, protocol)
        _rehearse(model, protocol)

    def training(
        self,
        training: Training,
        inputs: Tensor,
        labels: Tensor,
        protocol: Protocol,
        draws: torch.Generator,
    ) -> Training:
        """Opacus' model and optimizer, and Poisson samples."""
        count = len(inputs)
        size = min(protocol.batch_size or count, count)
        dataset = TensorDataset(inputs, labels)
        wrapped, optimizer, loader = _make_private(
            module=training.model,
            optimizer=training.optimizer,
            data_loader=DataLoader(dataset, size, generator=_fork(draws, torch.device("cpu"))),
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            loss_reduction=protocol.reduction,
            poisson_sampling=True,
            noise_generator=_fork(draws, inputs.device),
        )
        # Opacus samples at 1 / ceil(N / B) and divides by the resulting size, rounded down. With
        # these values the loop matches the guarantee even where B does not divide N.
        sampler = loader.batch_sampler
        sampler.sample_rate, sampler.steps = size / count, -(-count // size)
        optimizer.expected_batch_size = size

        def batches() -> Iterable[tuple[Tensor, Tensor]]:
            for chosen in sampler:
                batch = torch.tensor(chosen, dtype=torch.int64, device=inputs.device)
                # Backward hooks expect an input with a gradient and warn if there is none.
                yield inputs[batch].requires_grad_(), labels[batch]

        training.undo.callback(set_mode, training.model, protocol)
        training.undo.callback(_clean, wrapped)
        return Training(wrapped, optimizer, batches, training.undo)

    def gradient(self, model: nn.Module, inputs: Tensor, draws: torch.Generator) -> None:
        """Add noise to parameters that no example reached, as to all others."""
        for parameter in model.parameters():
            if parameter.requires_grad and _singles(parameter) is None:
                nothing = parameter.new_zeros((len(inputs), *parameter.shape))
                parameter.__dict__["grad_sample"] = nothing

    def guarantee(self, protocol: Protocol, examples: int, rounds: int = 1) -> Guarantee | None:
        """Return the guarantee for one example, over all local steps of all rounds."""
        rate = min(1.0, protocol.need("batch_size").batch_size / examples)
        steps = rounds * protocol.steps(examples)
        return Guarantee(*sampled_gaussian(self.noise, rate, steps, self.delta), self.delta)


def _make_private(*, module: nn.Module, **settings: Any) -> Any:
    """Call ``PrivacyEngine.make_private`` for a network in the mode of a client."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off")  # reproducible on purpose
        engine = opacus().PrivacyEngine()
    _visible_to_opacus(module)
    module.training = True  # Opacus requires it here, but not later
    made = engine.make_private(module=module, **settings)
    _visible_to_opacus(module)
    return made


def _clean(wrapped: Any) -> None:
    """Remove from the network what Opacus attached to it."""
    model: nn.Module = wrapped.to_standard_module()
    for module in model.modules():
        module.__dict__.pop("activations", None)
    for parameter in model.parameters():
        parameter.__dict__.pop("summed_grad", None)


def _fork(draws: torch.Generator, device: torch.device) -> torch.Generator:
    """Return a separate generator on ``device``, seeded from ``draws``."""
    seed = int(torch.randint(2**62, (), generator=draws))
    return torch.Generator(device).manual_seed(seed)


def _singles(parameter: nn.Parameter) -> Tensor | None:
    """The gradients [B, ...] of single examples that Opacus left at ``parameter``, if any."""
    found: Tensor | None = parameter.__dict__.get("grad_sample")
    return found


def _owns_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _visible_to_opacus(model: nn.Module) -> None:
    """Put into training mode what Opacus must see: the trained layers.

    All else stays in eval mode, above all dropout, which is off for every client in leakmeter.
    """
    for module in model.modules():
        module.training = _owns_trained(module)


def _check_layers(model: nn.Module, protocol: Protocol) -> None:
    """Name the layer that Opacus refuses, and the remedy."""
    validators = opacus().validators.ModuleValidator.VALIDATORS
    for name, module in model.named_modules():
        mixing = isinstance(module, _BatchNorm) and protocol.batchnorm == "train"
        check = validators.get(type(module)) if _owns_trained(module) else None
        if mixing or (check is not None and check(module)):
            kind = type(module).__name__
            raise LeakmeterError(
                f"dp_sgd: Opacus cannot train {name or 'the model'} ({kind}) privately: replace "
                "it (a batch norm by nn.GroupNorm), or let "
                "opacus.validators.ModuleValidator.fix(model) do so"
            )


def _rehearse(model: nn.Module, protocol: Protocol) -> None:
    """Refuse a network whose gradients of single examples do not add up to that of the batch.

    Opacus computes them layer by layer, from what goes in and comes out. A weight that is used
    anywhere but in its layer's own call would escape the clipping.
    """
    shape = protocol.need("input_shape").input_shape
    probe = copy.deepcopy(model)
    some = next(probe.parameters())
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((2, *shape), generator=generator).to(some).requires_grad_()
    places = output_shape(probe, x.detach())[1:]
    set_mode(probe, protocol)
    _visible_to_opacus(probe)
    try:
        wrapped = opacus().GradSampleModule(probe, loss_reduction=protocol.reduction)
        labels = torch.zeros((2, *places), dtype=torch.int64, device=x.device)
        loss_of(protocol, wrapped(x), labels).backward()
    except Exception as error:  # of Opacus, or of the user's own code
        reason = " ".join(str(error).split())[:300]
        raise LeakmeterError(f"dp_sgd: Opacus cannot train this network: {reason}") from None
    share = 0.5 if protocol.reduction == "mean" else 1.0
    for name, parameter in probe.named_parameters():
        if not parameter.requires_grad or parameter.grad is None:
            continue
        single = _singles(parameter)
        whole = torch.zeros_like(parameter) if single is None else share * single.sum(0)
        if (whole - parameter.grad).norm() > 0.01 * parameter.grad.norm():
            raise LeakmeterError(
                f"dp_sgd: Opacus does not see all of what examples do to {name}: use each weight "
                "only in the call of the layer that owns it, or freeze it"
            )
