"""Every command and snippet in the documentation parses: commands by the programs' own parsers, YAML by the
configuration. Python also runs, each block in the test that `RUN_BY` names, and so do commands:
tests/serve/openai_api/test_docs_commands.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from docs_blocks import BLOCKS, DOCS, REPOSITORY, Block, simple_commands, typed, written_in
from ray.scripts.scripts import cli as ray_cli
from ray.serve.schema import DeploymentSchema, ServeDeploySchema
from ray.serve.scripts import cli as serve_cli

from goose.calibration import AcceptanceTable
from goose.sources.registry import SOURCE_NAMES
from goose.speculator import Speculator
from goose_ray.cli.main import main
from goose_ray.config import EngineConfig, GooseConfig
from goose_ray.errors import ConfigError
from goose_ray.telemetry.metric_list import DISTRIBUTIONS, SCALARS

# Programs of others, which need not be here.
FOREIGN = {"docker", "export", "git", "grafana", "helm", "kubectl", "llm", "npm", "prometheus", "sudo", "until"}
# A new block fails here until a test runs it.
RUN_BY = {
    "README.md": ["tests/serve/openai_api/test_readme.py", "tests/equivalence/test_readme_library.py"],
    "calibration.md": ["tests/unit/docs/test_docs_snippets.py"],
    "policies.md": ["tests/unit/docs/test_policies_doc.py", "tests/unit/docs/test_policies_doc.py"],
}
LANGUAGES = {"", "console", "json", "python", "yaml"}


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command, list[str]], None]:
    """Parses as the program does, and runs nothing. Files need not exist."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: self.coerce_path_result(value))
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)

    def run(command: click.Command, arguments: list[str]) -> None:
        command.main(arguments, standalone_mode=False)

    return run


def check_command(words: list[str], parse: Callable[[click.Command, list[str]], None]) -> None:
    """Raises click's errors or AssertionError for what would not do what it says."""
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    match program:
        case "goose":
            parse(main, arguments)
        case "serve":
            parse(serve_cli, arguments)
        case "ray":
            parse(ray_cli, arguments)
        case "make":
            targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
            assert {word for word in arguments if "=" not in word} <= targets
        case "curl":
            bodies = [after for flag, after in pairwise(arguments) if flag in ("-d", "--data")]
            assert all(isinstance(json.loads(body), dict) for body in bodies)
        case "pip" | "pytest":
            pass
        case _ if "/" in program:
            assert (REPOSITORY / program).is_file()
        case _:
            assert program in FOREIGN, f"{program}: is it a program? Then add it to FOREIGN"


@pytest.mark.parametrize("block", written_in("console"), ids=str)
def test_commands_parse(block: Block, parse: Callable[[click.Command, list[str]], None]) -> None:
    lines = list(typed(block.text))
    assert lines, "a console block without a prompt"
    for line in lines:
        for words in simple_commands(line):
            check_command(words, parse)


def examples(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """(command, line) of the lines in help texts that begin with a command of ours."""
    for line in (command.help or "").splitlines():
        if re.match(r"\s*([\w ]+\| )?goose [a-z]", line):
            yield path, line.strip()
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from examples(child, f"{path} {name}")


@pytest.mark.parametrize(("path", "line"), [one for one in examples(main, "goose") if one[0] != "goose"])
def test_examples_of_help_texts_parse(path: str, line: str, parse: Callable[[click.Command, list[str]], None]) -> None:
    for words in simple_commands(line):
        check_command(words, parse)


# It takes nothing.
_WITHOUT_EXAMPLE = {"goose model list"}


def leaves(command: click.Command, path: str = "goose") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, f"{path} {name}")
    else:
        yield path, command


@pytest.mark.parametrize(("path", "command"), [one for one in leaves(main) if one[0] not in _WITHOUT_EXAMPLE], ids=str)
def test_every_command_has_an_example_that_begins_with_its_name(path: str, command: click.Command) -> None:
    assert re.search(rf"\b{path}\b|\$\({path}\)", command.help or ""), "no example in the help text"


@pytest.mark.parametrize("block", written_in("yaml"), ids=str)
def test_yaml_is_a_configuration(block: Block) -> None:
    document: dict[str, Any] = yaml.safe_load(block.text)
    if "applications" in document:
        ServeDeploySchema.model_validate(document)
        for application in document["applications"]:
            GooseConfig.from_args(application.get("args", {}))
    elif "deployments" in document:
        ServeDeploySchema.model_validate({"applications": [{"import_path": "goose_ray.app:build_app", **document}]})
    elif document.keys() <= DeploymentSchema.model_fields.keys():
        DeploymentSchema.model_validate({"name": "GooseServer", **document})
    elif document.keys() <= GooseConfig.model_fields.keys():
        GooseConfig.from_args(document)
    else:
        assert set(document) == {"args"}, "neither arguments of the application nor a Serve config"
        try:
            GooseConfig.from_args(document["args"])
        except ConfigError as error:
            # else known, and not installed here
            if "needs the extra" not in str(error):
                raise


@pytest.mark.parametrize("block", written_in("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_python_is_run_by_the_tests_that_are_named() -> None:
    files = sorted(block.file.name for block in written_in("python"))
    assert files == sorted(name for name, tests in RUN_BY.items() for _ in tests)
    for name, tests in RUN_BY.items():
        for test in tests:
            assert name in (REPOSITORY / test).read_text(encoding="utf-8"), test


def test_the_posterior_of_calibration_md_is_one() -> None:
    [block] = [block for block in written_in("python") if block.file.name == "calibration.md"]
    names: dict[str, Any] = {"speculator": Speculator(policy="goose"), "others": AcceptanceTable(SOURCE_NAMES)}
    exec(block.text, names)
    low, high = names["beta"].interval(0.95)
    assert 0 < low < names["beta"].mean < high < 1


@pytest.mark.parametrize("block", written_in("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


def test_languages_are_those_that_are_checked() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_files_that_commands_name_exist(file: Path) -> None:
    named = re.findall(r"\b(?:deployments|cluster|tests)/[\w./-]*\w", file.read_text(encoding="utf-8"))
    assert not [path for path in named if not (REPOSITORY / path).exists()]


def test_metrics_that_are_said_to_have_vllm_s_names_do() -> None:
    said = set(re.findall(r"`vllm:(\w+)`", (REPOSITORY / "docs/coming-from-vllm.md").read_text()))
    scalars = {one.stem if one.gauge else f"{one.stem}_total" for one in SCALARS if one.in_vllm}
    assert said == scalars | {one.stem for one in DISTRIBUTIONS}


def test_what_vllm_s_options_become_is_there() -> None:
    """Of the table's second column, options are of `goose serve` and plain names are fields of the configuration."""
    text = (REPOSITORY / "docs/coming-from-vllm.md").read_text()
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| `--")]
    options = {option for parameter in main.commands["serve"].params for option in parameter.opts}
    fields = GooseConfig.model_fields.keys() | {f"engine.{name}" for name in EngineConfig.model_fields}
    environment = {"GOOSE_API_KEY", "HF_HOME"}
    assert len(rows) > 20
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row):
            assert name in options | fields | environment, row
