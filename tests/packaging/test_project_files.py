"""The files around the code parse and agree: metadata, citation, workflows, templates."""

import re
import shlex
import subprocess

import pytest
import yaml

import tf_cg_ops as cg

from ..support import pages
from ..support.sources import ROOT, source_files

try:
    import tomllib
except ImportError:  # Python 3.10, for which pytest requires the same under another name.
    import tomli as tomllib

WORKFLOWS = source_files(".github/workflows/*.yml")
TEMPLATES = source_files(".github/ISSUE_TEMPLATE/*.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_has_the_required_fields():
    assert CITATION["cff-version"] == "1.2.0"
    for field in ("message", "title", "authors"):
        assert CITATION[field]
    known = {"cff-version", "message", "title", "type", "authors", "version", "license", "repository-code", "abstract"}
    assert set(CITATION) <= known | {"keywords", "date-released", "doi"}
    assert CITATION["type"] == "software"
    assert all(set(author) <= {"name", "family-names", "given-names"} for author in CITATION["authors"])


def test_citation_and_metadata_agree():
    assert CITATION["version"] == cg.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["repository-code"] == PROJECT["urls"]["Homepage"]
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_the_classifiers_name_every_python_that_is_supported():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == [f"3.{minor}" for minor in range(10, 14)]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_changelog_has_the_version_or_unreleased_entries():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0].startswith(cg.__version__)
    kinds = re.findall(r"^### (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_a_change_takes_one_line():
    for line in (ROOT / "CHANGELOG.md").read_text().splitlines():
        assert not line.startswith("  "), line


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_complete(path):
    workflow = yaml.safe_load(path.read_text())
    # YAML 1.1 reads `on` as a truth value.
    assert {"name", True, "permissions", "jobs"} <= set(workflow)
    assert workflow["name"] == path.stem
    for job in workflow["jobs"].values():
        assert job["runs-on"]
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4"))


def make_targets(path):
    """The targets of the commands that begin with make, without variables."""
    for step in steps(yaml.safe_load(path.read_text())):
        for command in re.split(r"&&|\n", step.get("run", "")):
            program, *arguments = shlex.split(re.sub(r"\$\{\{.*?\}\}", "0", command)) or [""]
            if program == "make":
                yield from (argument for argument in arguments if "=" not in argument)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_of_make_that_exist(path):
    targets = list(make_targets(path))
    assert targets
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/building.md", "docs/reliability.md"])
def test_a_page_names_targets_of_make_that_exist(page):
    code = re.sub(r"(?m)^ {4}(make .*?)(?: +#.*)?$", r"`\1`", (ROOT / page).read_text())
    commands = [shlex.split(command) for command in re.findall(r"`(make [^`]*)`", code)]
    targets = {argument for _, *arguments in commands for argument in arguments if "=" not in argument}
    assert targets
    for target in targets:
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_has_what_github_reads(path):
    front = pages.front_matter(path.read_text())
    assert set(front) == {"name", "about", "title", "labels"}
    assert front["name"]
    assert front["about"]


def test_there_is_a_template_for_each_kind_of_issue():
    assert {path.stem for path in TEMPLATES} == {"bug", "wrong_gradient", "feature"}
