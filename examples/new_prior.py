"""A new prior in twenty lines: color changes more slowly than brightness.

    python examples/new_prior.py [ITERATIONS]

A prior says what is known about pictures before any update is seen. Attacks know that neighboring
pixels are alike (total variation). In photographs that holds for color even more than for
brightness: most edges are changes in brightness. So the new prior takes the brightness away from
each pixel and asks that what is left changes little from pixel to pixel. Takes a minute.

Result: 25.1 instead of 23.9 dB with 80 iterations. Not all of that is due to color: twice the total
variation alone gives 24.3. Both weights were chosen on this very client.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from torch import Tensor

import leakmeter as lm
from leakmeter.attacks import Problem, TotalVariation


@dataclass(frozen=True)
class ColorVariation(TotalVariation):
    """``weight * (mean |dx| + mean |dy|)`` of each channel's difference to the brightness."""

    def penalty(self, x: Tensor, problem: Problem) -> Tensor:
        """Total variation of color alone; ``x`` are normalized images [N, 3, H, W]."""
        pixels = problem.pixels(x)
        return super().penalty(pixels - pixels.mean(1, keepdim=True), problem)


def main(iterations: int = 80) -> None:
    """Compare SME without and with it on eight photographs after twenty epochs."""
    data = lm.data.load("photos", size=32)
    images, labels = data.images[:8], data.labels[:8]
    model = lm.models.build("cnn-femnist", classes=data.classes, channels=3, size=32)
    client = lm.Client(model, images, labels, epochs=20, lr=0.004, normalize="photos")
    update = client.train()

    # More total variation than SME's paper takes is better here, with or without the new prior.
    sme = lm.papers.sme(iterations, tv=0.06)
    colored = replace(sme, priors=(*sme.priors, ColorVariation(0.1)))
    for name, attack in (("SME", sme), ("SME and color", colored)):
        found = attack.run(model, update, compiling="never")
        psnr = lm.measure.images(found.images, images).psnr.mean()
        print(f"{name:15} {psnr:.1f} dB", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
