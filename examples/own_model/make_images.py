"""Fills the folder ``images`` with pictures, one subfolder per class, as yours would be.

They are crops of the photographs inside scikit-image, so nothing is downloaded.
"""

from pathlib import Path

from PIL import Image

import leakmeter as lm

FOLDER = Path("images")

data = lm.data.load("photos", size=48)
for number, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
    folder = FOLDER / data.class_names[label]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = image.mul(255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(folder / f"{number:03}.png")
print(f"{len(data)} pictures of {data.classes} classes are in {FOLDER.absolute()}")
