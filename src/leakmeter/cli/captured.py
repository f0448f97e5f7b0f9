"""The command that attacks captured updates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakmeter.cli.options import OPTIONS, OUT, command_line


def attack(
    updates: Annotated[
        list[Path],
        typer.Argument(help="A captured update (safetensors), or several from the same examples."),
    ],
    model: Annotated[str, typer.Option(help="A built-in network or package.module:factory.")],
    out: OUT,
    attack: Annotated[str, typer.Option(help="The recipe: see 'leakmeter list attacks'.")] = "auto",
    iterations: Annotated[int | None, typer.Option(help="Override the paper's number.")] = None,
    option: OPTIONS = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels the attacker is assumed to know, such as 3,14,15.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random start.", min=0, max=2**63 - 1)] = 0,
    device: Annotated[str | None, typer.Option(help="Device, such as cuda or mps.")] = None,
    input_shape: Annotated[str | None, typer.Option(help="Shape of an image: 3,32,32.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of outputs of the network.")] = None,
    normalize: Annotated[
        str | None, typer.Option(help="A data set's name, 'none', or mean,..:std,..")
    ] = None,
    batchnorm: Annotated[str | None, typer.Option(help="The client's: eval or train.")] = None,
    epochs: Annotated[int | None, typer.Option(help="The client's local epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="The client's batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="The client's learning rate.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="The client's optimizer: sgd, adam or adamw.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the client's SGD.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="The client's weight decay.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="In the client's loss.")] = None,
    reduction: Annotated[
        str | None, typer.Option(help="Reduction of the client's loss: mean or sum.")
    ] = None,
    sparse: Annotated[
        bool | None, typer.Option("--sparse", help="The client left the zeros out of the update.")
    ] = None,
    bits: Annotated[int | None, typer.Option(help="Bits to which the update was rounded.")] = None,
) -> None:
    """Attack a captured update. No ground truth is needed.

    Use the options to state what the update's file does not say about the client's training.
    Several updates that a client made from the same examples (rounds, epochs) are reconstructed
    together.
    """
    from leakmeter import report
    from leakmeter.audits.captured import attack_captured, recipe_options
    from leakmeter.execution.progress import watching
    from leakmeter.judge import judge

    told = {
        "input_shape": input_shape,
        "classes": classes,
        "normalize": normalize,
        "batchnorm": batchnorm,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
        "sparse": sparse,
        "bits": bits,
    }
    with watching() as watch:
        evidence, provenance = attack_captured(
            updates,
            model,
            attack,
            out,
            options=recipe_options(option or [], iterations),
            labels=labels,
            seed=seed,
            device=device,
            told={field: value for field, value in told.items() if value is not None},
            command=command_line(),
            watch=watch,
        )
    page = out / "report.html"
    results = judge([evidence], provenance)
    report.write(results, [evidence], provenance, page)
    report.write_results(results, out)
    typer.echo(f"report: {page.resolve()}")
