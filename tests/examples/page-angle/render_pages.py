"""Render pages of text, turned by a quarter: folders `0`, `90`, `180`, `270` of PNG files, the same with the same packages.

The words are those of LICENSE, the fonts matplotlib's own. Pages have a heading, one or two columns and paragraphs; some
are blurred or hold only a few lines, so that the task has hard cases.

    python tests/examples/page-angle/render_pages.py pages 1200
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tqdm import tqdm

HEIGHT, WIDTH = 420, 300
FONTS = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif", "STIXGeneral", "STIXGeneralItalic")
ANGLES = ("0", "90", "180", "270")  # turned clockwise


def render_page(words, random):
    """Return one upright page as a Pillow image in grey."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{random.choice(FONTS)}.ttf"
    points = int(random.integers(9, 22))
    font, heading = (
        ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC) for size in (points, 2 * points)
    )
    paper = random.uniform(170, 255)
    image = Image.new("L", (WIDTH, HEIGHT), int(paper))
    draw, ink = ImageDraw.Draw(image), int(paper - random.uniform(50, 160))
    margin, top = int(random.integers(10, 40)), int(random.integers(10, 60))
    if random.random() < 0.5:
        draw.text((margin, top), " ".join(random.choice(words, 2)), ink, heading)
        top += 3 * points
    columns = int(random.integers(1, 3))
    width = (WIDTH - margin * (columns + 1)) // columns
    lines = int(random.integers(1, 40))  # from a note to a full page
    for column in range(columns):
        left = margin + column * (width + margin)
        for line in range(min(lines, (HEIGHT - margin - top) // (points + 4))):
            text = " ".join(random.choice(words, 12))
            while font.getlength(text) > width and " " in text:
                text = text.rpartition(" ")[0]
            draw.text((left, top + line * (points + 4)), text, ink, font)
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.5)))


def main(folder, count):
    random = np.random.default_rng(0)
    words = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8").split()
    for angle in ANGLES:
        Path(folder, angle).mkdir(parents=True, exist_ok=True)
    for number in tqdm(range(int(count)), desc="render", unit="page", mininterval=1):
        page, angle = render_page(words, random), ANGLES[number % 4]
        page.rotate(-int(angle), expand=True).save(Path(folder, angle, f"{number:05}.png"))


if __name__ == "__main__":
    main(*sys.argv[1:])
