"""A folder of images becomes the arrays that the pipeline reads: every pixel and label where it belongs, or nothing."""

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.common.images import labels_or_none, load_images, load_labels
from stages.common.workspace import UserError
from stages.tools import image_room, import_images
from stages.tools.import_images import main

PARTS = ["train-images", "train-labels", "test-images", "test-labels"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(path, value=0, size=(6, 8), mode="L", **options):
    """Save an image of one value, `size` is (height, width); the suffix says in which format."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size[::-1], value).save(path, **options)


def class_folders(counts, root="pictures"):
    """Save grey images of one value each, 10 * class + number, in a folder a class."""
    for place, (name, count) in enumerate(counts.items()):
        for number in range(count):
            picture(f"{root}/{name}/{number:02}.png", 10 * place + number)


def run(*options, channels="1", root="pictures"):
    """Run the command; return the four arrays by name."""
    main([root, "my-data", "--channels", channels, *options])
    return {part: np.load(f"data/my-data/{part}.npy") for part in PARTS}


def only(path, *options, channels="3"):
    """Import one image (twice: one has to be for the test); return its pixels (C, H, W)."""
    content = Path(path).read_bytes()
    Path("pictures").mkdir()
    for name in ("a", "b"):
        (Path("pictures") / name).with_suffix(Path(path).suffix).write_bytes(content)
    return run(*options, channels=channels)["train-images"][0]


def refusal(*options, **settings):
    """Return what the command says in refusal, after it has written nothing."""
    with pytest.raises(UserError) as error:
        run(*options, **settings)
    assert not [path for path in Path("data").rglob("*") if path.is_file()]
    return str(error.value)


def test_the_arrays_are_what_the_pipeline_reads():
    class_folders({"cat": 5, "dog": 10})
    run()
    images = load_images("data/my-data/train-images.npy")
    assert images.shape == (12, 1, 6, 8) and images.dtype == np.uint8
    assert load_labels("data/my-data/train-labels.npy", 12).tolist().count(1) == 8


def test_every_image_has_the_label_of_its_folder_and_its_line_names_its_file():
    class_folders({"cat": 5, "dog": 10})
    arrays = run()
    for part in ("train", "test"):
        images, labels = arrays[f"{part}-images"], arrays[f"{part}-labels"]
        files = Path(f"data/my-data/{part}-files.txt").read_text().splitlines()
        for image, label, file in zip(images, labels, files, strict=True):
            name, number = file.split("/")
            assert np.all(image == 10 * label + int(number[:2])) and name == ("cat", "dog")[label]
    assert Path("data/my-data/classes.txt").read_text() == "cat\ndog\n"


def test_a_fifth_of_every_class_is_for_the_test_and_no_image_is_in_both():
    class_folders({"cat": 10, "dog": 5, "eel": 2})
    arrays = run()
    assert np.bincount(arrays["test-labels"]).tolist() == [2, 1, 1]
    values = [image.flat[0] for part in ("train", "test") for image in arrays[f"{part}-images"]]
    assert sorted(values) == [*range(10), *range(10, 15), 20, 21]


def test_the_share_of_the_test_can_be_chosen():
    class_folders({"cat": 10, "dog": 10})
    assert np.bincount(run("--test-share", "0.5")["test-labels"]).tolist() == [5, 5]


def test_a_seed_gives_the_same_bytes_and_another_seed_another_split():
    class_folders({"cat": 10, "dog": 10})
    run()
    before = {part: Path(f"data/my-data/{part}.npy").read_bytes() for part in PARTS}
    run("--force")
    assert before == {part: Path(f"data/my-data/{part}.npy").read_bytes() for part in PARTS}
    run("--force", "--seed", "1")
    assert before["test-images"] != Path("data/my-data/test-images.npy").read_bytes()


def test_classes_are_mixed_in_the_arrays():
    """An evaluation of fewer images takes the first ones, which must not all be of one class."""
    class_folders({"cat": 20, "dog": 20})
    labels = run("--test-share", "0.5")["test-labels"]
    assert len(set(labels[:10])) == 2


def test_train_and_test_folders_are_used_as_they_are():
    class_folders({"cat": 3, "dog": 1}, "pictures/train")
    class_folders({"dog": 2}, "pictures/test")
    arrays = run()
    assert [len(arrays[part]) for part in PARTS] == [4, 4, 2, 2]
    assert arrays["test-labels"].tolist() == [1, 1]  # as in train/, though test/ has no cat


def test_images_without_class_folders_have_no_labels():
    for number in range(10):
        picture(f"pictures/{number}.png", number)
    arrays = run()
    assert [arrays[part].shape for part in PARTS] == [(8, 1, 6, 8), (0,), (2, 1, 6, 8), (0,)]
    assert arrays["test-labels"].dtype == np.int64
    assert labels_or_none("data/my-data/test-labels.npy", 2) is None


def test_a_file_gives_the_classes_the_order_of_the_models_outputs():
    """By name cat comes before dog; and a model may know classes of which there is no image."""
    class_folders({"cat": 2, "dog": 2})
    Path("order.txt").write_text("dog\neel\ncat\n")
    run("--classes", "order.txt")
    assert labels_by_folder() == {"dog": 0, "cat": 2}


def labels_by_folder():
    """Return {class folder: label} of the training images."""
    names = [line.split("/")[0] for line in Path("data/my-data/train-files.txt").read_text().splitlines()]
    return dict(zip(names, np.load("data/my-data/train-labels.npy").tolist(), strict=True))


def test_class_folders_that_are_all_numbers_are_in_the_order_of_numbers():
    """As text 10 comes before 2, and with more than ten classes every label after the second would be wrong."""
    class_folders({"10": 2, "2": 2, "0": 2, "007": 2})
    run()
    assert labels_by_folder() == {"0": 0, "2": 1, "007": 2, "10": 3}


def test_class_folders_that_are_not_all_numbers_are_in_the_order_of_text():
    class_folders({"10": 2, "2": 2, "other": 2})
    run()
    assert labels_by_folder() == {"10": 0, "2": 1, "other": 2}


def test_images_in_deeper_folders_count_and_other_files_are_left_out_and_counted(capsys):
    class_folders({"cat": 2, "dog": 2})
    picture("pictures/dog/more/deeper.jpg", 12)
    Path("pictures/cat/notes.txt").write_text("a note")
    Path("pictures/.hidden").mkdir()
    run()
    assert capsys.readouterr().out == (
        "data/my-data: 3 training and 2 test images of shape (1, 6, 8), 2 classes (cat, dog); "
        "other files, left out: 1\n"
    )


def gradient(height, width):
    """Return an RGB image in which every pixel is another."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([rows * 3, columns * 3, rows + columns], axis=2).astype(np.uint8))


def test_a_png_arrives_pixel_by_pixel():
    gradient(6, 8).save("a.png")
    np.testing.assert_array_equal(only("a.png"), np.asarray(gradient(6, 8)).transpose(2, 0, 1))


def test_channels_can_come_last():
    gradient(6, 8).save("a.png")
    np.testing.assert_array_equal(only("a.png", "--channels-last"), np.asarray(gradient(6, 8)))


def test_a_photograph_is_turned_upright():
    """A camera held sideways stores the picture lying down, and orientation 6 in its EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = 6
    gradient(6, 8).save("a.png", exif=exif)
    np.testing.assert_array_equal(only("a.png"), np.rot90(np.asarray(gradient(6, 8)), -1).transpose(2, 0, 1))


def test_a_colour_image_becomes_grey_by_its_luma():
    picture("a.png", (200, 100, 50), mode="RGB")
    assert np.all(only("a.png", channels="1") == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50))


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, [255, 255, 255]),
        ("L", 70, [70, 70, 70]),
        ("I;16", 70 * 257, [70, 70, 70]),
        ("CMYK", (55, 155, 205, 0), [200, 100, 50]),
        ("RGBA", (200, 100, 50, 255), [200, 100, 50]),
        ("RGBA", (200, 100, 50, 0), [255, 255, 255]),
        ("LA", (50, 0), [255, 255, 255]),
    ],
)
def test_every_kind_of_pixel_becomes_eight_bits_a_channel(mode, value, expected):
    picture("a.tif", value, mode=mode)
    assert only("a.tif")[:, 0, 0].tolist() == expected


def test_a_palette_is_looked_up_and_its_transparent_colour_shows_the_background():
    image = Image.new("P", (8, 6), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.putpixel((0, 0), 0)
    image.save("a.png", transparency=0)
    pixels = only("a.png", "--background", "#0000ff")
    assert pixels[:, 0, 0].tolist() == [0, 0, 255] and pixels[:, 1, 1].tolist() == [10, 20, 30]


def test_of_an_animation_the_first_picture_counts():
    first, second = Image.new("L", (8, 6), 10), Image.new("L", (8, 6), 200)
    first.save("a.gif", save_all=True, append_images=[second])
    assert np.all(only("a.gif", channels="1") == 10)


def marked(height, width):
    """Return a black image whose left third is white."""
    image = Image.new("L", (width, height))
    image.paste(255, (0, 0, width // 3, height))
    return image


@pytest.mark.parametrize(
    ("options", "first_row"),
    [
        (["--fit", "stretch"], [255] * 2 + [0] * 4),
        (["--fit", "crop"], [255] + [0] * 5),  # the left 3 of 12 columns are cut off, in the middle 1 of 4 is left
        (["--fit", "pad", "--background", "#808080"], [128] * 6),
    ],
)
def test_an_image_is_stretched_cut_or_padded_into_the_size(options, first_row):
    """From 6x12 to 6x6, with nearest-neighbour interpolation; padded it is 3 rows high in the middle."""
    marked(6, 12).save("a.png")
    pixels = only("a.png", "--size", "6", "--interpolation", "nearest", *options, channels="1")
    assert pixels.shape == (1, 6, 6) and pixels[0, 0].tolist() == first_row


def test_padding_keeps_the_whole_image_in_the_middle():
    marked(6, 12).save("a.png")
    pixels = only("a.png", "--size", "12x12", "--fit", "pad", channels="1")
    np.testing.assert_array_equal(pixels[0, 3:9], np.asarray(marked(6, 12)))
    assert np.all(pixels[0, :3] == 255) and np.all(pixels[0, 9:] == 255)


@pytest.mark.parametrize(("height", "width"), [(50, 71), (90, 64), (37, 37)])
def test_shorter_side_and_crop_are_torchvisions_to_the_pixel(height, width):
    """A model that was trained with Resize and CenterCrop sees what it was trained on."""
    from torchvision import transforms  # noqa: PLC0415 -- two seconds that only this test needs

    gradient(height, width).save("a.png")
    theirs = transforms.Compose([transforms.Resize(40), transforms.CenterCrop((32, 36))])(gradient(height, width))
    ours = only("a.png", "--size", "32x36", "--shorter-side", "40")
    np.testing.assert_array_equal(ours, np.asarray(theirs).transpose(2, 0, 1))


def test_a_data_set_that_is_there_is_replaced_only_with_force():
    """Also one that `dvc add` tracks and whose arrays this clone does not have."""
    class_folders({"cat": 4})
    before = run()["test-labels"]
    class_folders({"cat": 4, "dog": 8})
    with pytest.raises(UserError, match=r"a data set my-data already, data/my-data/train-images.npy first: .* --force"):
        run()
    np.testing.assert_array_equal(np.load("data/my-data/test-labels.npy"), before)
    assert len(run("--force")["test-labels"]) == 3
    for part in PARTS:
        Path(f"data/my-data/{part}.npy").rename(f"data/my-data/{part}.npy.dvc")
    with pytest.raises(UserError, match="a data set my-data already"):
        run()


def test_memory_does_not_grow_with_the_images():
    """120 images of 49 kB each: 6 MB in the arrays, less than 2 MB at any time."""
    picture("a.png", (1, 2, 3), size=(128, 128), mode="RGB")
    Path("pictures").mkdir()
    for number in range(120):
        (Path("pictures") / f"{number}.png").hardlink_to("a.png")
    run(channels="3")  # what is loaded once is loaded
    tracemalloc.start()
    main(["pictures", "my-data", "--channels", "3", "--force"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_a_file_name_that_is_no_utf_8_is_listed_all_the_same():
    class_folders({"cat": 4})
    os.rename(b"pictures/cat/02.png", b"pictures/cat/caf\xe9.png")
    run()
    listed = Path("data/my-data/train-files.txt").read_text() + Path("data/my-data/test-files.txt").read_text()
    assert "cat/caf\\udce9.png" in listed.splitlines()


def test_all_broken_images_are_named_and_nothing_is_written():
    class_folders({"cat": 4, "dog": 4})
    Path("pictures/cat/01.png").write_bytes(b"no image")
    whole = Path("pictures/dog/02.png").read_bytes()
    Path("pictures/dog/02.png").write_bytes(whole[: len(whole) - 25])
    sentence = refusal()
    assert sentence.startswith("cannot read pictures/") and sentence.endswith("; nothing was written.")
    assert "pictures/cat/01.png (cannot identify image file" in sentence and "pictures/dog/02.png (" in sentence


def test_a_broken_image_does_not_touch_what_was_imported_before():
    class_folders({"cat": 4, "dog": 4})
    before = run()
    Path("pictures/cat/01.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read pictures/cat/01.png"):
        run("--force")
    for part in PARTS:
        np.testing.assert_array_equal(np.load(f"data/my-data/{part}.npy"), before[part])
    assert not list(Path("data/my-data").glob(".*"))


def test_a_disk_that_is_full_leaves_none_of_the_files(repository):
    """Only the largest array does not fit, which shows when its last bytes are written: nothing may be renamed by then."""
    class_folders({"cat": 10, "dog": 10})
    command = [sys.executable, "-m", "stages.tools.import_images", "pictures", "my-data", "--channels", "1"]
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "limited", *command]  # one block of 1,024 bytes
    for name in ("cat", "dog"):
        for path in Path("pictures", name).iterdir():
            picture(path, size=(8, 10))
    done = subprocess.run(
        limited,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "error: data/my-data/train-images.npy is larger than the file system or `ulimit -f` allows: "
    )
    assert os.listdir("data/my-data") == []


def test_floating_point_pixels_are_refused():
    picture("pictures/a.tif", 0.5, mode="F")
    picture("pictures/b.tif", 0.5, mode="F")
    assert "pictures/a.tif (its pixels have 32 bits; save it with 8 or 16)" in refusal()


@pytest.fixture
def unread(monkeypatch):
    """Fails the test if an image is read."""
    monkeypatch.setattr(import_images, "read_pixels", lambda *_, **__: pytest.fail("an image was read"))


def test_a_size_for_which_the_disk_has_no_room_is_refused_before_an_image_is_read(unread):
    class_folders({"cat": 4, "dog": 4})
    assert re.fullmatch(
        r"8 images of shape \(1, 10000000, 10000000\) take 800,000\.0 GB, and the disk of data/my-data has [\d,.]+ GB "
        r"left: ask for a smaller --size, or import fewer images\.",
        refusal("--size", "10000000"),
    )


def test_a_size_that_does_not_fit_into_memory_is_refused_before_an_image_is_read(unread, monkeypatch):
    """One image at a time has to; with a shorter side it is larger on its way to its size."""
    class_folders({"cat": 4})
    monkeypatch.setattr(image_room, "memory_bytes", lambda: 2e9)
    monkeypatch.setattr(image_room, "free_bytes", lambda folder: 1e15)
    words = "an image of this size takes {} GB of memory, and this machine has 2.0 GB: ask for a smaller {}."
    assert refusal("--size", "30000x40000") == words.format("3.6", "--size")
    assert refusal("--size", "30000x40000", "--channels-last", channels="3") == words.format("10.8", "--size")
    sentence = refusal("--size", "224", "--shorter-side", "40000")
    assert sentence == words.format("4.8", "--size and --shorter-side")


def test_an_image_for_which_there_is_no_memory_left_is_no_broken_file(monkeypatch):
    class_folders({"cat": 4})
    monkeypatch.setattr(import_images, "read_pixels", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    assert refusal("--size", "6").endswith(
        ".png does not fit into memory: make it smaller, or ask for a smaller --size."
    )


def test_images_of_several_sizes_need_a_size():
    class_folders({"cat": 4, "dog": 4})
    picture("pictures/dog/02.png", size=(8, 6))
    sentence = refusal()
    assert sentence.endswith(": give one size to all with --size.") and "(1, 8, 6)" in sentence
    assert run("--size", "4")["train-images"].shape[1:] == (1, 4, 4)


@pytest.mark.parametrize(
    ("prepare", "options", "sentence"),
    [
        (lambda: None, [], "pictures is not a folder: name the one that holds your images."),
        (
            lambda: Path("pictures/cat").mkdir(parents=True),
            [],
            "pictures/cat holds no images: add some, or remove the folder.",
        ),
        (
            lambda: Path("pictures").mkdir(),
            [],
            "pictures holds no images: name a folder of class folders, or of images.",
        ),
        (
            lambda: class_folders({"cat": 2, "dog": 1}),
            [],
            "class dog has one image, pictures/dog/00.png, and needs one for training and one for the test: add some.",
        ),
        (
            lambda: picture("pictures/a.png"),
            [],
            "the folder has one image, pictures/a.png, and needs one for training and one for the test: add some.",
        ),
        (
            lambda: (class_folders({"cat": 2}), picture("pictures/a.png")),
            [],
            "pictures holds images beside its class folders, a.png first: move or remove them.",
        ),
        (
            lambda: class_folders({"train": 2, "bus": 2}),
            [],
            "pictures should hold train/ and test/ and nothing else, but see bus, test: add what is missing, or rename "
            "the folder if `train` or `test` is a class.",
        ),
        (
            lambda: (class_folders({"cat": 2}, "pictures/train"), class_folders({"eel": 2}, "pictures/test")),
            [],
            "pictures/test/eel is none of the 1 classes (cat): rename or remove it.",
        ),
        (
            lambda: (class_folders({"cat": 2}, "pictures/train"), picture("pictures/test/a.png")),
            [],
            "only one of pictures/train and pictures/test has class folders: make them alike.",
        ),
        (
            lambda: (class_folders({"cat": 2}, "pictures/train"), class_folders({"cat": 2}, "pictures/test")),
            ["--test-share", "0.3"],
            "pictures has train/ and test/ of its own, which are not split: leave out --test-share.",
        ),
        (
            lambda: (class_folders({"cat": 2}), Path("order.txt").write_text("cat\ncat\n")),
            ["--classes", "order.txt"],
            "order.txt names a class twice: write each class once, one a line.",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_the_fix(prepare, options, sentence):
    prepare()
    assert refusal(*options) == sentence


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "0x10"], "'0x10' is no size: write HEIGHTxWIDTH in pixels, such as 48x192, or 224"),
        (["--test-share", "20"], "'20' is no share: write a number between 0 and 1"),
        (["--seed", "-1"], "'-1' is no seed: write a whole number, 0 or more"),
        (["--background", "greyish"], "'greyish' is no colour: write a name such as grey, or #808080"),
        (["--shorter-side", "256"], "--shorter-side belongs to --size with --fit crop"),
        (
            ["--size", "224", "--shorter-side", "200"],
            "--shorter-side 200 is less than the 224 pixels that --size cuts out",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, words, capsys):
    with pytest.raises(SystemExit):
        run(*options)
    assert capsys.readouterr().err.endswith(f"{words}\n")
