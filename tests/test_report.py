"""README and report say what the committed metrics say, and nothing else."""

import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from stages.common.reporting.explanations import accuracy_sentence
from stages.common.reporting.results import load_results
from stages.common.workspace import UserError, parse_yaml, read_params
from stages.report import main as write_report
from stages.report import refuse_old
from stages.tools.update_readme import results_section, with_results


@pytest.fixture
def committed(repository, monkeypatch):
    """The repository with its committed metrics, as the working folder."""
    monkeypatch.chdir(repository)
    return repository


@pytest.fixture
def results(committed, tmp_path, monkeypatch):
    """A copy of the committed results, as the working folder, with what verify-load said of failures.

    DVC keeps those texts, so that a clone without the cache has them only where the committed report quotes them.
    """
    for folder in ("metrics", "plots"):
        shutil.copytree(committed / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.txt"))
    shutil.copy(committed / "params.yaml", tmp_path)
    quoted = re.findall(
        r"^- (models/(.+)/onnx/(.+)\.onnx .*)$", (committed / "plots/report.md").read_text(), re.MULTILINE
    )
    for model in read_params("models"):
        for name in ["fp32", *read_params("variants")]:
            path = tmp_path / "plots/verify-load" / model / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line, *file in quoted if file == [model, name]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def report(results):
    """The report written from the committed results: (HTML, Markdown)."""
    write_report(results / "report.html", results / "report.md")
    return (results / "report.html").read_text(), (results / "report.md").read_text()


def test_the_readmes_tables_need_every_result_and_say_which_is_missing(results):
    (results / "metrics/benchmark/cnn.json").unlink()
    with pytest.raises(UserError, match=r"^metrics/benchmark/cnn.json is not here, .*`dvc repro` measures them\.$"):
        results_section(results)
    (results / "metrics/evaluate/cnn/fp32.json").unlink()
    with pytest.raises(UserError, match=r"^metrics/evaluate/cnn/fp32.json and 1 more is not here"):
        results_section(results)


class Page(HTMLParser):
    """What a test asks of an HTML page: its links, images and table rows."""

    def __init__(self, text):
        super().__init__()
        self.links, self.images, self.rows = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag == "img":
            self.images.append(attributes["src"])
        elif tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th") and self.rows:
            self.rows[-1] += 1


def test_the_readme_has_the_tables_of_the_committed_metrics(committed):
    text = (committed / "README.md").read_text()
    assert text == with_results(text, results_section(committed)), "run `python -m stages.tools.update_readme`"


def test_the_readme_states_no_measurement_outside_its_generated_section(committed):
    """Speeds, sizes, shares and times belong to the tables; 95 % is the level of the intervals.

    Fenced blocks are left out: what they show is what a command printed.
    """
    text = (committed / "README.md").read_text()
    prose = text[: text.index("<!-- results:")] + text[text.index("<!-- end of results -->") :]
    prose = re.sub(r"^```.*?^```", "", prose, flags=re.DOTALL | re.MULTILINE)
    measured = re.findall(r"\b\d[\d.,]*\s?(?:x\b|%|ms\b|KiB\b|MB\b|points\b|us\b)", prose)
    assert {number for number in measured if number != "95 %"} == set()


def test_readme_markers_that_are_gone_are_named():
    with pytest.raises(UserError, match="lost its `<!-- results"):
        with_results("# a title\n", "tables")


def test_metrics_of_an_older_version_are_named():
    """After a pull, before `dvc repro`."""
    with pytest.raises(UserError, match=r"net\.json is from an older version of the pipeline"):
        refuse_old({"net": {"conditions": {"rounds": 20}}})


def test_the_report_needs_nothing_but_itself(report):
    page = Page(report[0])
    assert len(page.images) >= 3
    assert all(source.startswith("data:image/png;base64,") for source in page.images)
    assert "<script" not in report[0]
    assert len(report[0].encode()) < 5_000_000


def test_every_link_of_the_report_leads_to_a_committed_file(report, committed):
    links = [link for link in Page(report[0]).links if not link.startswith("#")]
    assert links
    for link in set(links):
        assert (committed / "plots" / link).resolve().is_file(), link


def test_a_processor_on_which_int8_products_saturate_is_said_to_be_one(results):
    path = results / "metrics/machine.json"
    machine = json.loads(path.read_text())
    for isa, count in (("avx512_vnni", 0), ("avx2", 1)):
        machine["cpu"]["isa"] = isa
        path.write_text(json.dumps(machine))
        write_report(results / "report.html", results / "report.md")
        for name in ("report.html", "report.md"):
            text = (results / name).read_text()
            assert text.count("This processor has no VNNI (avx2)") == count
    assert "The accuracy of `static-s8s8`, `static-s8s8-convgemm`, `static-u8s8`" in text


def test_every_row_of_a_table_has_every_column(report):
    """A cell too few would shift numbers under another heading."""
    table_rows = [Page(table).rows for table in re.findall(r"<table>.*?</table>", report[0], re.DOTALL)]
    assert all(len(set(rows)) == 1 for rows in table_rows)


def test_the_report_has_every_variant_of_every_network(report, committed):
    variants = read_params("variants")
    for html_or_markdown in report:
        for model, found in load_results(committed, read_params("models"), variants).items():
            section = html_or_markdown[
                html_or_markdown.rindex(f">{model}</h2>" if "</h2>" in html_or_markdown else f"## {model}\n") :
            ]
            for name in ["fp32", *variants]:
                assert name in section
                assert f"{found['variants'][name]['verify']['size_bytes']:,}" in section


def test_the_committed_report_is_the_one_that_these_results_give(report, committed):
    """A change of template or metrics that was not run through the pipeline shows here; of the page Git has the hash."""
    [out] = [out for out in parse_yaml((committed / "dvc.lock").read_bytes(), "dvc.lock")["stages"]["report"]["outs"]
             if out["path"] == "plots/report.html"]  # fmt: skip
    assert hashlib.md5(report[0].encode(), usedforsecurity=False).hexdigest() == out["md5"]
    assert (committed / "plots" / "report.md").read_text() == report[1]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium, Debian's package of that name")
def test_a_browser_opens_the_report_without_an_error(report, tmp_path):
    """Every image decodes and the console stays empty, on a phone's width, too."""
    check = "<script>addEventListener('load',()=>{document.title='broken images: '+[...document.images].filter(i=>!i.naturalWidth).length+', wider than the window: '+(document.documentElement.scrollWidth>innerWidth)})</script>"
    (tmp_path / "report.html").write_text(report[0].replace("</body>", f"{check}</body>"))
    for width in (1280, 500):
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                   f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--enable-logging=stderr",
                   "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "report.html").as_uri()]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "<title>broken images: 0, wider than the window: false</title>" in done.stdout
        assert "CONSOLE" not in done.stderr


def test_the_draws_of_a_model_that_was_taken_out_of_sensitivity_are_not_shown(results):
    """Its metrics file is still there: DVC does not delete what no stage makes any more."""
    params = (results / "params.yaml").read_text()
    (results / "params.yaml").write_text(params[: params.index("\nsensitivity:")] + "\nsensitivity: {}\n")
    write_report(results / "report.html", results / "report.md")
    assert (results / "report.html").read_text().count("is not under <code>sensitivity</code>") == len(
        read_params("models")
    )


def test_equal_logits_are_laid_to_an_8_bit_output_only_where_the_output_has_a_scale():
    found = {
        "changed": 7, "images": 100, "changed_max_margin": 0.1, "images_below_max_percent": 3.0, "median_margin": 2.0,
        "changed_ties": 2,
    }  # fmt: skip
    floating, rounded = (accuracy_sentence("a", found | more) for more in ({}, {"changed_by_logit_scale": 5}))
    assert (
        "In 2 of them the variant's two largest logits are equal, so that the order of the classes decides." in floating
    )
    assert "the order of the classes decides: its output is rounded to 8 bits, too." in rounded


def test_a_part_that_was_not_run_is_named(results):
    """Without explanations the report says which command makes them; it does not leave a gap or show old ones."""
    for folder in ("metrics/explain", "metrics/explain-accuracy", "metrics/sensitivity"):
        shutil.rmtree(results / folder)
    for path in (results / "plots/explain").iterdir():
        if not path.match("*-recipes.png"):  # which plot-tune draws
            path.unlink()
    write_report(results / "report.html", results / "report.md")
    text = (results / "report.html").read_text()
    assert text.count("Not run: <code>dvc repro explain@") == len(read_params("models"))
    assert text.count("Not run: <code>dvc repro explain-accuracy@") == len(read_params("models"))
    assert text.count("Not run: the model is not under <code>sensitivity</code>") == len(read_params("models"))
