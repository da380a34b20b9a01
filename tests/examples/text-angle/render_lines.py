"""Render lines of text, half of them upside down: a folder `0` and a folder `180` of PNG files, the same with the same packages.

The words are those of LICENSE with numbers among them, the fonts matplotlib's own. Lines are blurred, noisy and of low
contrast, some more than others, so that the task has hard cases: what rounding changes is found there.

    python tests/examples/text-angle/render_lines.py lines 2000
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tqdm import tqdm

FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic",
         "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic")  # fmt: skip


def render_line(words, random):
    """Return one upright line of one to four random words and numbers as a Pillow image in RGB, cut close to its ink."""
    text = " ".join(
        str(random.integers(10**5)) if random.random() < 0.2 else str(random.choice(words))
        for _ in range(random.integers(1, 5))
    )
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{random.choice(FONTS)}.ttf"
    font = ImageFont.truetype(path, int(random.integers(28, 44)), layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(text)
    margins = random.integers(2, 8, 4)
    size = (right - left + int(margins[:2].sum()), bottom - top + int(margins[2:].sum()))
    paper = random.uniform(120, 255) + random.uniform(-15, 15, 3)
    ink = paper - random.uniform(40, 200) + random.uniform(-10, 10, 3)
    image = Image.new("RGB", size, tuple(int(value) for value in paper.clip(0, 255)))
    place = (int(margins[0]) - left, int(margins[2]) - top)
    ImageDraw.Draw(image).text(place, text, tuple(int(value) for value in ink.clip(0, 255)), font)
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))
    noise = random.normal(0, random.uniform(0, 8), (size[1], size[0], 1))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def main(folder, count):
    random = np.random.default_rng(0)
    words = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8").split()
    for angle in ("0", "180"):
        Path(folder, angle).mkdir(parents=True, exist_ok=True)
    for number in tqdm(range(int(count)), desc="render", unit="line", mininterval=1):
        line, angle = render_line(words, random), ("0", "180")[number % 2]
        line.rotate(int(angle)).save(Path(folder, angle, f"{number:05}.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
