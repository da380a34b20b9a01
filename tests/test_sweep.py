"""What the summary of a sweep promises, and the recipes of the README on a small pipeline of the same shape."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from stages.common.workspace import UserError
from stages.tools import experiment_queue, sweep, sweep_points
from stages.tools.experiment_queue import QUEUED, Task, has_process
from stages.tools.lockfile import Lock
from stages.tools.parameter_values import ABSENT, value_of
from stages.tools.revisions import NotStored, Revision
from stages.tools.sweep import summarize
from stages.tools.sweep_figure import draw, positions
from stages.tools.sweep_points import FAILED, FINISHED, LOST, RUNNING, WAITING, Point, collect, flatten

REPOSITORY = Path(__file__).parents[1]
STATIC, DYNAMIC = ("cnn", "static-u8s8"), ("cnn", "dynamic-qint8")


def evaluation(change):
    return {
        "accuracy": 0.9 + change,
        "accuracy_change": change,
        "change_low": change - 0.001,
        "change_high": change + 0.001,
        "changed": 40,
    }


def point(name, seed, change=0.0, md5=None, state=FINISHED, **more):
    """Return a Point whose static variant depends on the seed and whose dynamic variant does not."""
    results = {STATIC: evaluation(change), DYNAMIC: evaluation(0.0)} if state == FINISHED else {}
    files = {STATIC: md5 or f"md5 of {seed}", DYNAMIC: "md5"}
    return Point(name, state, {"calibrate.seed": seed, "calibrate.images": 200}, results, files, **more)


def test_points_without_a_result_are_counted_and_named_with_the_reason():
    failed = point("bad", 2, state=FAILED, reason="error: ask for fewer.")
    text = summarize([point("main (HEAD)", 0), point("good", 1), failed, point("gone", 3, state=LOST)])
    assert "3 experiments of this commit: 1 finished, 1 failed, 1 lost" in text
    assert "failed: bad (calibrate.seed=2): error: ask for fewer." in text
    assert "lost: gone (calibrate.seed=3)" in text and "dvc queue kill gone" in text


def test_a_point_that_was_queued_twice_is_seen_and_counts_once():
    points = [point("main (HEAD)", 0), point("a", 1, 0.001), point("b", 1, 0.001), point("c", 2, 0.002)]
    text = summarize(points)
    assert "the same point: a, b" in text
    assert "3 different points: change +0.100 on average" in text
    assert "byte for byte" not in text


def test_equal_bytes_of_different_points_are_named():
    text = summarize([point("main (HEAD)", 0, md5="x"), point("a", 1, md5="x"), point("b", 2, md5="y")])
    assert "the same file, byte for byte: main (HEAD), a" in text
    assert "the same file in every point: cnn dynamic-qint8" in text


def test_parameters_that_do_not_vary_are_not_columns():
    text = summarize([point("main (HEAD)", 0), point("a", 1), point("b", 2)])
    assert "calibrate.seed" in text and "calibrate.images" not in text


def test_the_spread_is_that_of_seeds_and_no_other_parameter_mixes_into_it():
    """Of points that differ in the number of images, too, each number has its own; of images alone there is none."""
    text = summarize(grid((1, 2, 3), (50, 400)))
    spreads = [line for line in text.splitlines() if "standard deviation" in line]
    assert spreads == [
        "  calibrate.images=50: 3 different points: change +0.250 on average, standard deviation 0.100, from +0.15 to +0.35 points",
        "  calibrate.images=400: 3 different points: change +0.600 on average, standard deviation 0.100, from +0.50 to +0.70 points",
    ]
    assert "standard deviation" not in summarize(grid((1,), (50, 100, 400)))


def test_a_default_that_is_written_out_makes_no_other_point():
    points = [point("main (HEAD)", 0), point("a", 0), point("b", 1), point("c", 2)]
    for one in points:
        one.parameters["models.cnn.evaluate.images"] = 9
    for one in points[1:]:
        one.parameters["models.cnn.input.repeat"] = 1
    text = summarize(points)
    assert "repeat" not in text and "  3 different points: change " in text
    assert "standard deviation" not in summarize(points[:3])


def test_a_parameter_that_a_point_leaves_out_is_shown_with_its_default():
    """Where it has one: a calibration method has no use for another's, and what is not there has no parameters."""
    shared = {"calibrate.seed": 0, "calibrate.images": 200, "calibrate.batch_size": 20, "calibrate.method": "MinMax"}
    recipe = {"calibrate_quantize.a.quant_format": "QDQ"}
    known = shared | recipe
    assert value_of(known, "calibrate_quantize.a.per_channel") is False
    assert value_of(known, "calibrate_quantize.b.per_channel") == ABSENT
    assert value_of(known | {"models.cnn.evaluate.images": 9}, "models.cnn.input.repeat") == 1
    assert value_of(known | {"tune.cnn.batch": 1}, "tune.cnn.recipe.per_channel") == ABSENT
    assert value_of(known, "calibrate.symmetric") is False and value_of(known, "calibrate.percentile") == ABSENT
    percentile = known | {"calibrate.method": "Percentile"}
    assert (
        value_of(percentile, "calibrate.symmetric") is True and value_of(percentile, "calibrate.percentile") == 99.999
    )
    assert value_of(known, "calibrate_quantize.a.calibrate.images") == 200
    assert value_of(known, "no.such.key") == value_of(known, "calibrate.no") == ABSENT
    points = [point("main (HEAD)", 0), point("a", 1), point("b", 2)]
    points[0].parameters |= recipe
    for one in points[1:]:
        one.parameters |= recipe | {"calibrate_quantize.a.per_channel": True}
    assert re.search(r"main \(HEAD\) +0 +False ", summarize(points))


def test_a_point_in_the_queue_waits_for_a_worker_or_for_one_to_be_started(monkeypatch):
    monkeypatch.setattr(sweep_points, "show_file", lambda *_: None)
    waiting = [
        sweep_points.point_of(Task("abc", name, QUEUED, lives=lives)) for name, lives in (("a", True), ("b", False))
    ]
    text = summarize([point("main (HEAD)", 0), *waiting])
    assert re.search(r"waiting: a \(.*\): a worker takes it when it is done with those before\n", text)
    assert re.search(r"waiting: b \(.*\): not started, `dvc queue start -j 2` starts it\n", text)


@pytest.mark.parametrize("active", [0, 1])
def test_a_worker_that_is_active_takes_what_is_queued(monkeypatch, active):
    answer = f"Task     Name    Created    Status\n36c3ad8  name    06:15 PM   Queued\n\nWorker status: {active} active, 0 idle\n"
    monkeypatch.setattr(experiment_queue, "ask", lambda *_: answer)
    monkeypatch.setattr(experiment_queue, "git", lambda *_: b"head\n")
    assert [task.lives for task in experiment_queue.tasks_of("head")] == [active == 1]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [("sweep.foo", "let it end in .png"), ("nowhere/sweep.png", "the folder nowhere is not there")],
)
def test_a_figure_that_cannot_be_written_as_named_is_refused_before_work(tmp_path, monkeypatch, capsys, path, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "collect", lambda: pytest.fail("points were collected"))
    with pytest.raises(SystemExit):
        sweep.main(["--figure", path])
    assert sentence in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_points_are_ordered_by_number_not_by_text():
    text = summarize([point("main (HEAD)", 10), point("a", 9), point("b", 100)])
    assert text.index("\n  a ") < text.index("\n  main") < text.index("\n  b ")


def test_the_figure_has_points_along_one_parameter_and_is_whole(tmp_path):
    points = [point("main (HEAD)", 0), point("a", 1), point("b", 2), point("c", 3, state=WAITING)]
    sentence = draw(points, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert sentence.endswith("sweep.png: 1 panel against calibrate.seed")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.png"]


def grid(seeds, images):
    """Return the commit and a Point for every pair of values."""
    points = [point("main (HEAD)", 0)]
    for seed, count in itertools.product(seeds, images):
        points.append(point(f"{seed}-{count}", seed, 0.001 * seed + 1e-5 * count, md5=f"{seed} {count}"))
        points[-1].parameters["calibrate.images"] = count
    return points


def drawn(monkeypatch, points, path, *arguments):
    """Return how many dots `draw` draws for each label of its figure, and its sentence."""
    from matplotlib.axes import Axes  # noqa: PLC0415 -- half a second for these tests alone

    dots, scatter = [], Axes.scatter

    def count(axis, x, *rest, **options):
        dots.append(len(x))
        return scatter(axis, x, *rest, **options)

    monkeypatch.setattr(Axes, "scatter", count)
    return dots, draw(points, path, *arguments)


def test_every_point_of_a_grid_is_drawn_with_a_form_for_each_value_of_the_other_parameter(tmp_path, monkeypatch):
    dots, sentence = drawn(monkeypatch, grid((1, 2, 3), (50, 400)), tmp_path / "sweep.png", "calibrate.seed")
    assert dots == [1, 3, 3]  # 200 images: the commit; 50; 400
    assert sentence.endswith("1 panel against calibrate.seed")


def test_points_that_no_form_is_left_for_are_counted_with_the_reason(tmp_path, monkeypatch):
    points = grid((1,), range(10, 24))  # 14 values, and the commit's own
    dots, sentence = drawn(monkeypatch, points, tmp_path / "sweep.png", "calibrate.seed")
    assert sum(dots) == 12
    assert sentence.endswith(
        "; 3 of 15 points are left out, since their other parameters have more than 12 combinations"
    )


def test_a_figure_that_is_not_drawn_says_the_true_reason(tmp_path):
    same = [point("main (HEAD)", 0, md5="x"), point("a", 1, md5="x")]
    assert draw(same, tmp_path / "sweep.png") == "every variant has the same file in all points: no figure"
    unfinished = [point("main (HEAD)", 0), point("a", 1, state=WAITING)]
    sentence = "no variant has an accuracy change in two different points: no figure"
    assert draw(unfinished, tmp_path / "sweep.png") == sentence


def test_a_parameter_that_no_point_has_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match=r"^no point has a parameter `foo`: .* or take one of calibrate.seed\.$"):
        draw([point("main (HEAD)", 0), point("a", 1)], tmp_path / "sweep.png", "foo")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--model", "error: no point has the model `nosuch`: take one of cnn.\n"),
        ("--variant", "error: no point has the variant `nosuch`: take one of dynamic-qint8, static-u8s8.\n"),
    ],
)
def test_a_name_that_no_point_knows_is_an_error_that_lists_the_names(monkeypatch, capsys, option, sentence):
    monkeypatch.setattr(sweep, "collect", lambda: [point("main (HEAD)", 0), point("a", 1)])
    with pytest.raises(SystemExit) as stop:
        sweep.main([option, "nosuch"])
    assert stop.value.code == 2 and capsys.readouterr().err == sentence


def test_git_ignores_what_the_readmes_commands_draw():
    """So that its `git add -A` commits results alone; `dvc plots show` and `dvc plots diff` write to dvc_plots/."""
    drawn = ["plots/sweep.png", "dvc_plots/index.html"]
    done = subprocess.run(["git", "check-ignore", *drawn], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.stdout.split() == drawn


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    """What is printed fills more than a pipe holds, as it does for `head` by luck."""
    code = "from stages.tools.output import print_to_reader; print_to_reader('line\\n' * 100_000); raise SystemExit(3)"
    writer = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY
    )
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert writer.stderr.read() == b"" and writer.wait() == 3  # its own exit code, as a gate has it
    writer.stderr.close()


def test_a_running_task_is_looked_at_when_it_is_asked_about(tmp_path):
    """Ended with its worker yet to say so, or not yet started, it lives; with a process that is gone it does not."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    cases = [({"pid": os.getpid(), "returncode": None}, True), ({"pid": ended.pid, "returncode": None}, False)]
    cases.append(({"pid": ended.pid, "returncode": 0}, True))
    for process, lives in cases:
        (tmp_path / f"{tmp_path.name}.json").write_text(json.dumps(process))
        assert has_process(tmp_path) is lives
    (tmp_path / f"{tmp_path.name}.json").unlink()
    assert has_process(tmp_path) and has_process(None)


def test_the_readmes_table_of_experiments_has_the_numbers_of_the_evaluation_and_no_others():
    """DVC writes the file before a name that two files have, and matches --keep from the start of a column's name."""
    readme = (REPOSITORY / "README.md").read_text()
    keep = re.search(r"dvc exp show [^`]*--keep '([^']*)'", readme)[1]
    names = Counter()
    for file in (REPOSITORY / "metrics").rglob("*.json"):
        names.update(key for key, _ in flatten(json.loads(file.read_text())))
    columns = [
        key if names[key] == 1 else f"{file.relative_to(REPOSITORY)}:{key}"
        for file in (REPOSITORY / "metrics").rglob("*.json")
        for key, _ in flatten(json.loads(file.read_text()))
    ]
    assert sorted(column for column in columns if re.match(keep, column)) == [
        "cnn.static-u8s8.accuracy_change",
        "metrics/evaluate/cnn/static-u8s8.json:cnn.static-u8s8.changed",
    ]
    assert all(re.match(keep, column) for column in ("Experiment", "State", "calibrate.seed"))


def test_a_parameter_that_is_constant_cannot_be_an_axis(tmp_path):
    points = [point("main (HEAD)", 0), point("a", 1)]
    with pytest.raises(UserError, match=r"`calibrate.images` is the same in all points.*calibrate.seed"):
        draw(points, tmp_path / "sweep.png", "calibrate.images")
    assert draw(points[:1], tmp_path / "sweep.png") == "no parameter varies: no figure"


def test_names_become_places_on_the_axis_and_numbers_stay():
    assert positions([3, 1]) == ([3, 1], None)
    assert positions(["MinMax", "Entropy", "MinMax"]) == ([0, 1, 0], ["MinMax", "Entropy"])


# A pipeline of the product's shape whose stages take no time. `count` notes which stage ran; `calibrate.images` above
# 1000 fails; with one calibration image every seed makes the same file.
PIPELINE = """
stages:
  train:
    cmd: python work.py train models/cnn/onnx/fp32.onnx
    deps: [work.py, shared]
    params: [train]
    outs: [models/cnn/onnx/fp32.onnx]
  calibrate-quantize:
    matrix: {model: [cnn], variant: [static-s8s8, static-u8s8]}
    cmd: python work.py calibrate-quantize models/${item.model}/onnx/${item.variant}.onnx
    deps: [work.py, "models/${item.model}/onnx/fp32.onnx"]
    params: [calibrate]
    outs: ["models/${item.model}/onnx/${item.variant}.onnx"]
  evaluate:
    matrix: {model: [cnn], variant: [static-s8s8, static-u8s8]}
    cmd: >-
      python work.py evaluate models/${item.model}/predictions/${item.variant}.npz
      metrics/evaluate/${item.model}/${item.variant}.json ${item.variant}
    deps: [work.py, "models/${item.model}/onnx/${item.variant}.onnx"]
    params: [evaluate]
    outs: ["models/${item.model}/predictions/${item.variant}.npz"]
    metrics: [{"metrics/evaluate/${item.model}/${item.variant}.json": {cache: false}}]
  benchmark:
    foreach: [cnn]
    do:
      cmd: python work.py benchmark metrics/benchmark/${item}.json
      deps: [work.py, "models/${item}/onnx"]
      metrics: [{"metrics/benchmark/${item}.json": {cache: false}}]
"""
WORK = """
import json, os, sys, time
from pathlib import Path
import yaml
stage, *paths = sys.argv[1:]
params = yaml.safe_load(Path("params.yaml").read_text())
start = time.time()
for path in paths[:2]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
seed, images = params["calibrate"]["seed"], params["calibrate"]["images"]
if stage == "train":
    Path(paths[0]).write_text(f"trained for {params['train']['epochs']}")
elif stage == "calibrate-quantize":
    if images > 1000:
        sys.exit(f"error: calibrate.images is {images}: ask for fewer.")
    Path(paths[0]).write_text(f"{Path('models/cnn/onnx/fp32.onnx').read_text()}, {seed if images > 1 else ''} {images}")
elif stage == "evaluate":
    Path(paths[0]).write_text(f"predictions {seed} {images} {params['evaluate']['threads']}")
    change = seed / 1000
    numbers = {"accuracy": 0.9 + change, "accuracy_change": change, "change_low": change - 0.001,
               "change_high": change + 0.001, "changed": seed}
    Path(paths[1]).write_text(json.dumps({"cnn": {paths[2]: numbers}}))
elif stage == "benchmark":
    from stages.common.machine_lock import machine_lock
    with machine_lock():
        start = time.time()
        time.sleep(1.0)
        Path(paths[0]).write_text(json.dumps({"cnn": {"seed": seed}}))
        end = time.time()
with open(os.environ["COUNT_FILE"], "a") as count:
    model = Path("models/cnn/onnx/fp32.onnx")
    linked = model.is_symlink() or model.stat().st_nlink > 1
    count.write(json.dumps([stage, start, end if stage == "benchmark" else time.time(), linked]) + chr(10))
"""


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """The small pipeline, run once and committed, in the current folder; stages append to $COUNT_FILE."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNT_FILE", str(tmp_path.parent / f"{tmp_path.name}.count"))
    monkeypatch.setenv("TMPDIR", str(tmp_path.parent))  # the machine's lock is there
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shell(
        "git init -q -b main && git config user.email test@example.invalid && git config user.name test && dvc init -q"
    )
    shell("dvc config core.autostage true && dvc config cache.type reflink,hardlink,symlink,copy")
    Path("dvc.yaml").write_text(PIPELINE)
    Path("work.py").write_text(WORK)
    Path("shared").mkdir()
    Path("shared/part.py").write_text("# a module of a package\n")
    Path(".dvcignore").write_text("__pycache__/\n")
    Path(".gitignore").write_text("/models/**/*.onnx\n/models/**/*.npz\n")
    parameters(epochs=2, seed=0, images=200, threads=1)
    shell("dvc repro -q && git add . && git commit -qm base")
    stages_run()
    return tmp_path


def parameters(*, epochs, seed, images, threads):
    sections = ["dataset: none", f"train: {{epochs: {epochs}}}", f"calibrate: {{seed: {seed}, images: {images}}}"]
    gaps = "\n\n\n\n".join([*sections, f"evaluate: {{threads: {threads}}}"])  # far apart, so that Git merges them
    path = Path("params.yaml")
    path.write_text(f"{gaps}\n")
    # Git takes a file for unchanged if size and second are those of its index, which DVC writes anew when it stages files.
    os.utime(path, (path.stat().st_mtime + 2,) * 2)


def shell(command):
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout  # noqa: S602 -- recipes as a user types them


def stages_run():
    """Return the stages that ran since the last call as (name, start, end, is the trained model a link?)."""
    file = Path(os.environ["COUNT_FILE"])
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [tuple(yaml.safe_load(line)) for line in lines]


def start(workers):
    """Start queue workers. They inherit the output of the command, so that capturing it would wait for their end."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["dvc", "queue", "start", "-j", str(workers)], check=True, **quiet)


def work_off(workers):
    start(workers)
    waits = re.compile(r"\b(Queued|Running)$", re.MULTILINE)
    wait_for(lambda: not waits.search(shell("dvc queue status")), seconds=240)


@pytest.mark.slow
def test_a_queued_sweep_of_one_target_is_summarized_truly(pipeline, capsys):
    """Eight points on two workers: one fails, one is queued twice, two make the same file; no benchmark runs."""
    shell("dvc exp run --queue -S 'calibrate.seed=range(1,4)' evaluate@cnn-static-u8s8")
    shell("dvc exp run --queue -S calibrate.images=99999999 evaluate@cnn-static-u8s8")
    shell("dvc exp run --queue -S calibrate.seed=2 evaluate@cnn-static-u8s8")
    shell("dvc exp run --queue -S calibrate.seed=1,2 -S calibrate.images=1 evaluate@cnn-static-u8s8")
    work_off(workers=2)
    assert {stage for stage, *_ in stages_run()} == {"calibrate-quantize", "evaluate"}
    points = collect()
    assert [point.state for point in points].count(FINISHED) == 7
    text = summarize(points)
    assert "7 experiments of this commit: 6 finished, 1 failed, 0 lost" in text
    assert "calibrate.images=99999999): error: calibrate.images is 99999999: ask for fewer." in text
    assert text.count("the same point: ") == 1
    assert text.count("byte for byte: ") == 1
    assert (
        "evaluated in one point only: cnn static-s8s8" in text
    )  # `dvc exp show` prints its old numbers in every point
    twice = [point for point in points if point.parameters["calibrate.seed"] == 2 and point.md5]
    assert twice[0].md5 == twice[1].md5


@pytest.mark.slow
def test_the_group_evaluate_is_a_target_and_leaves_the_benchmark_out(pipeline):
    shell("dvc exp run --queue -S calibrate.seed=1 evaluate")
    shell("dvc exp run --queue -S calibrate.seed=2 evaluate@cnn-static-s8s8 evaluate@cnn-static-u8s8")
    work_off(workers=1)
    ran = [stage for stage, *_ in stages_run()]
    assert sorted(ran) == ["calibrate-quantize"] * 4 + ["evaluate"] * 4


@pytest.mark.slow
def test_two_workers_never_benchmark_at_once_and_copy_no_data(pipeline):
    shell("dvc exp run --queue -S 'calibrate.seed=range(1,4)' benchmark@cnn")
    work_off(workers=2)
    runs = sorted(run[1:] for run in stages_run() if run[0] == "benchmark")
    assert len(runs) == 3
    assert all(end <= start for (_, end, _), (start, *_) in itertools.pairwise(runs))
    assert all(linked for *_, linked in runs)


@pytest.mark.slow
def test_a_point_whose_worker_was_killed_is_lost_not_running(pipeline):
    shell("dvc exp run --queue -S calibrate.seed=5 benchmark@cnn")
    held = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert "held\n" in iter(held.stdout.readline, "")  # after a line that says it waits, if another test holds it
        start(workers=1)
        running = wait_for(lambda: [p for p in shell_processes() if "exec-run" in p.cmdline()])
        for process in [running[0].parent(), *running[0].children(recursive=True), running[0]]:
            process.kill()
    finally:
        held.kill()
        held.wait()
    assert [(p.state, p.parameters["calibrate.seed"]) for p in collect()[1:]] == [(LOST, 5)]


HOLD = """
from stages.common.machine_lock import machine_lock
import time
with machine_lock():
    print("held", flush=True)
    time.sleep(300)
"""


def shell_processes():
    """Return the processes whose command line names this repository: its experiments."""
    import psutil  # noqa: PLC0415 -- one test needs it

    found = []
    for process in psutil.process_iter():
        try:
            if any(str(Path.cwd()) in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.5)
    return value


@pytest.mark.slow
def test_the_way_out_of_a_conflict_in_the_lock_file_trains_nothing(pipeline):
    """One branch trains longer, the other calibrates on other images; both have run, and their lock files conflict."""
    shell("git switch -qc longer")
    parameters(epochs=3, seed=0, images=200, threads=1)
    shell("dvc repro -q && git commit -qam longer && git switch -q main && dvc checkout -q && git switch -qc other")
    parameters(epochs=2, seed=7, images=200, threads=1)
    shell("dvc repro -q && git commit -qam other")
    stages_run()
    merge = subprocess.run(["git", "merge", "longer"], capture_output=True, text=True, check=False)
    assert "CONFLICT (content): Merge conflict in dvc.lock" in merge.stdout
    shell("git checkout --ours dvc.lock metrics")
    shell("dvc repro -q && git add . && git commit -qm merged")
    ran = [stage for stage, *_ in stages_run()]
    assert "train" not in ran  # from the run cache
    assert ran.count("calibrate-quantize") == 2  # this seed after that training: neither branch had it
    assert "changed" not in shell("dvc status")
    assert Path("models/cnn/onnx/static-u8s8.onnx").read_text() == "trained for 3, 7 200"


FOLDER_IS_NEWER = "models/cnn/onnx is newer, or holds what a variant that was taken out has left there: delete that"


@pytest.mark.slow
def test_a_result_is_stale_when_its_parameters_or_what_it_was_made_from_changed(pipeline):
    """Of the real dvc.lock, with a dependency on a folder, whose hash must be DVC's own."""
    benchmark, metrics = "metrics/benchmark/cnn.json", "metrics/evaluate/cnn/static-s8s8.json"
    assert Revision("HEAD").lock.stale_because(benchmark) is None
    parameters(epochs=2, seed=4, images=200, threads=1)
    shell("dvc repro -q evaluate@cnn-static-u8s8 && git commit -qam partial")
    lock = Revision("HEAD").lock
    assert lock.stale_because("metrics/evaluate/cnn/static-u8s8.json") is None
    assert lock.stale_because(metrics) == "calibrate.seed is 4 and it ran with 0"
    assert lock.stale_because(benchmark) == FOLDER_IS_NEWER
    Path("work.py").write_text(f"{WORK}# a comment\n")
    assert "work.py" in Revision("workspace").lock.code_changed(metrics)


@pytest.mark.slow
def test_a_folder_counts_as_it_lies_there(pipeline):
    """With what a variant that was taken out has left in it, and, of code, without what Python keeps beside it."""
    benchmark, metrics = "metrics/benchmark/cnn.json", "metrics/evaluate/cnn/static-s8s8.json"
    Path("models/cnn/onnx/taken-out.txt").write_text("left behind")
    Path("shared/__pycache__").mkdir()
    Path("shared/__pycache__/part.pyc").write_text("compiled")
    shell("dvc repro -q && git add --all && git commit -qm left")
    for name in ("HEAD", "workspace"):
        lock = Revision(name).lock
        assert lock.stale_because(benchmark) is None and lock.code_changed(metrics) == []
    Path("shared/part.py").write_text("# another\n")
    assert Revision("workspace").lock.code_changed(metrics) == ["shared"]
    Path("models/cnn/onnx/taken-out.txt").write_text("changed")
    assert Revision("workspace").lock.stale_because(benchmark) == FOLDER_IS_NEWER


@pytest.mark.slow
def test_the_commands_of_the_message_bring_missing_predictions_back(pipeline):
    path = "models/cnn/predictions/static-u8s8.npz"
    md5 = Lock(lambda name: Path(name).read_bytes()).md5(path)
    parameters(epochs=2, seed=4, images=200, threads=1)
    shell("dvc repro -q && git commit -qam next")
    Path(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}").unlink()
    with pytest.raises(NotStored, match="get it with") as missing:
        Revision("HEAD~1").read(path)
    checkout, repro, _ = str(missing.value).split("`")[1::2]
    shell(f"{checkout} && {repro} && git checkout -q main")
    assert Revision("HEAD~1").read(path) == b"predictions 0 200 1"


def test_a_point_is_lost_only_if_it_stays_so_and_a_folder_that_goes_away_is_asked_for_again(monkeypatch):
    """A worker that ends between two of DVC's answers leaves a point that is running in one and has no process."""
    done, lost = Point("done", FINISHED, {}), Point("gone", LOST, {})

    def look_at(*answers):
        rest = iter(answers)

        def next_answer():
            answer = next(rest)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(sweep_points, "points_now", next_answer)
        monkeypatch.setattr(sweep_points, "LOOK_SECONDS", 0)
        return collect()

    gone = UserError("`dvc queue status` failed: the folder does not exist.")
    assert look_at([done, lost], [done]) == look_at(gone, [done]) == [done]
    assert look_at([done, lost], [done, lost], [done, lost]) == [done, lost]
    others = [[Point(name, LOST, {})] for name in ("first", "second", "second")]  # one after the other seems lost
    assert [point.state for point in look_at(*others[:2])] == [RUNNING]
    with pytest.raises(UserError):
        look_at(gone, gone, gone)
