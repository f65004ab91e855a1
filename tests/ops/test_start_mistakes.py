"""Every mistake at a start is one message that names what is wrong, without a traceback, and exit code 2 (contract 13).

In process, so that many can be tried: what the command line would raise would be a traceback there.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import get_origin

import pytest
from pydantic import BaseModel, SecretStr

from genrm_trio.judging import files
from genrm_trio.judging.judge import Unobserved
from genrm_trio.ops import cli, complaints, settings
from genrm_trio.ops.assembly import make_judge
from genrm_trio.ops.sources import load

HUGE = "9" * 5000
PARAMETERS = "genrm_responses_create_params"
CHAT = "backend: chat, base_url: 'http://h'"
JUDGE = "judge: {base_url: 'http://h'}\n"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside, and a folder of our own with what paths may wrongly lead to."""
    for name in [n for n in os.environ if n.startswith(("GENRM_TRIO_", "NEMO_GYM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("circle").symlink_to("circle")
    Path("in.jsonl").write_text('{"prompt": "p", "answers": ["a"]}\n')
    Path("deep.jsonl").write_text("[" * 3000 + "]" * 3000 + "\n")
    Path("c.yaml").write_text(f"port: 0\n{JUDGE}")


def run(*arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["genrm-trio", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host: 'a..b'", "host: a host's name"),
        (f"host: {'x' * 64}.org", "host: a host's name"),
        ('host: "a\\0b"', "host: a host has no spaces and no control characters"),
        ("judge: {max_concurrency: 99999999999999999999}", "judge.max_concurrency: Input should be less than"),
        ("max_connections: 99999999999999999999", "max_connections: Input should be less than"),
        ("max_request_bytes: 99999999999999999999", "max_request_bytes: Input should be less than"),
        ("num_rollouts_per_prompt: 100001", "num_rollouts_per_prompt: Input should be less than"),
        ("shutdown_grace_s: 1e300", "shutdown_grace_s: Input should be less than"),
        ("limits: {keep_alive_idle_s: 32768}", "limits.keep_alive_idle_s: Input should be less than"),
        (f"port: {HUGE}", "c.yaml is not valid YAML, line 1 column 7: this is no valid int"),
        (f"port: 0x{'f' * 5000}", "port: Input should be less than or equal to 65535"),
        ("\n\ncohort_collection_timeout_s: 2020-99-99", "line 3 column 30: this is no valid timestamp"),
        ('port: !!int ""', "line 1 column 7: this is no valid int"),
        ("port: !!bool x", "line 1 column 7: this is no valid bool"),
        ("port: !!timestamp x", "line 1 column 7: this is no valid timestamp"),
        ("port: !!binary \u00e9", "line 1 column 7"),
        ("a: " + "[" * 3000, "c.yaml is not valid YAML: nested too deeply"),
        ("a: " + "[" * 3000 + "]" * 3000, "c.yaml is not valid YAML: nested too deeply"),
        ("a: &a [*a]", "line 1 column 4"),
        ("port: \x01", "c.yaml is not valid YAML"),
        ('judge: {backend: recorded, recording: "a\\0b"}', "judge.recording: a path has no NUL in it"),
        ('judge: {backend: recorded, recording: "\\ud800"}', "judge.recording: "),
        ('judge: {backend: recorded, recording: ""}', "judge.recording: names no file"),
        ("judge: {backend: recorded, recording: folder}", "judge.recording 'folder' cannot be read: Is a directory"),
        ('judge: {backend: chat, base_url: "http://h", template: "a\\0"}', "judge.template: a path has no NUL in it"),
        ("judge: {backend: chat, base_url: 'http://h', template: circle}", "judge.template 'circle' cannot be read"),
        ('checkpoint: {root: "a\\0"}', "checkpoint.root: a path has no NUL in it"),
        ('checkpoint: {root: ""}', "checkpoint.root: names no file"),
        (f"{PARAMETERS}: {{temperature: .nan}}", f"{PARAMETERS}: temperature is nan, but JSON has finite numbers only"),
        (f"{PARAMETERS}: {{a: [1, {{b: -.inf}}]}}", f"{PARAMETERS}: a.1.b is -inf, but JSON has finite numbers only"),
        (f'{PARAMETERS}: {{x: "\\ud800"}}', f"{PARAMETERS}: x is no valid Unicode"),
        (f'{PARAMETERS}: {{a: ["\\udfff"]}}', f"{PARAMETERS}: a.0 is no valid Unicode"),
        (f'{PARAMETERS}: {{"\\ud800": 1}}', "line 1 column 33: a key is valid Unicode"),
        ('"\\ud800": 1', "line 1 column 1: a key is valid Unicode"),
        ('checkpoint: {"a\\ud800": 1}', "line 1 column 14: a key is valid Unicode"),
        (
            "judge: {backend: recorded, recording: /dev/zero}",
            "judge.recording '/dev/zero' cannot be read: it is a device",
        ),
        (f"judge: {{{CHAT}, template: /dev/full}}", "judge.template '/dev/full' cannot be read: it is a device"),
    ],
)
@pytest.mark.parametrize("command", ["config", "serve"])
def test_of_a_configuration(
    command: str, text: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("c.yaml").write_text(text + "\n", encoding="utf-8")
    code, said = run(command, "--config", "c.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert words in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("GENRM_TRIO_JUDGE", "[" * 3000, "nested too deeply"),
        ("GENRM_TRIO_JUDGE", '{"max_concurrency": ' + HUGE + "}", "GENRM_TRIO_"),
        ("GENRM_TRIO_PORT", HUGE, "GENRM_TRIO_PORT"),
        ("GENRM_TRIO_GENRM_RESPONSES_CREATE_PARAMS", '{"a": ' + "[" * 600 + "]" * 600 + "}", "genrm_responses_create"),
        ("GENRM_TRIO_HOST", "\udcff", "GENRM_TRIO_HOST"),
        ("GENRM_TRIO_GENRM_RESPONSES_CREATE_PARAMS", '{"a": 1e999}', f"{PARAMETERS}, set by"),
        ("GENRM_TRIO_GENRM_RESPONSES_CREATE_PARAMS", '{"\\ud800": NaN}', "\\ud800 is no valid Unicode"),
        ("GENRM_TRIO_GENRM_RESPONSES_CREATE_PARAMS__TOP_P", "NaN", f"{PARAMETERS}: top_p is nan"),
        ("NEMO_GYM_CONFIG_DICT", "[" * 3000, "NEMO_GYM_CONFIG_DICT is not valid YAML: nested too deeply"),
    ],
)
def test_of_the_environment(
    name: str, value: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    code, said = run("config", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, words in said) == (2, True), said


def test_of_the_judge_in_gyms_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = "{genrm_model_server: {name: j}}", "{host: a..b, port: 1}"
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "x")
    gym = f"x: {{resources_servers: {{g: {ours}}}}}\nj: {{responses_api_models: {{v: {theirs}}}}}"
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", gym)
    code, said = run("config", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "NEMO_GYM_CONFIG_DICT, entry j: host and port of the judge: a host's name" in said) == (2, True), said


@pytest.mark.parametrize(
    "arguments",
    [
        *(f"{command} --config {at}" for command in ("config", "serve") for at in ("folder", "circle", "none", "/")),
        "serve --config c.yaml --host a..b",
        "serve --config c.yaml --host ",
        f"serve --config c.yaml --host {'x' * 64}",
        "serve --config c.yaml --port 99999999999999999999",
        f"serve --config c.yaml --port {HUGE}",
        *(f"serve --config c.yaml --ready-file {at}" for at in ("/", "folder", "", "none/x", "in.jsonl/x", "x" * 300)),
        *(f"serve --config c.yaml --record {at}" for at in ("/", "folder", "", "none/x", "circle", "x" * 300)),
        *(f"serve --config c.yaml --trace {at}" for at in ("/", "folder", "", "none/x", "circle", "x" * 300)),
        *(f"compare in.jsonl {at}" for at in ("/", "", ".", "..", "folder", "none/x", "circle", "in.jsonl", "x" * 300)),
        *(f"compare {at} out.jsonl" for at in ("/", "", "folder", "none", "circle", "x" * 300)),
        "compare in.jsonl deep.jsonl",
        *(f"inspect {at}" for at in ("none", "in.jsonl", "circle", "x" * 300)),
        *(f"trace check {at}" for at in ("/", "", "folder", "none", "circle", "x" * 300)),
        *(f"{command} /dev/{at}" for command in ("config --config", "trace check") for at in ("zero", "full")),
        *(f"compare --config c.yaml {files}" for files in ("/dev/zero out.jsonl", "in.jsonl /dev/full")),
        f"demo --seed {HUGE}",
        f"demo --cohorts {HUGE}",
        "demo --cohorts 0",
    ],
)
def test_of_an_option(arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run(*arguments.split(" "), capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2, said
    assert said.strip()


def texts(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of all fields that take a text, secrets and paths included."""
    for name, field in model.model_fields.items():
        kinds = complaints._leaves(field.annotation)
        for section in complaints._sections(model, name):
            yield from texts(section, f"{prefix}{name}.{'0.' if tuple in map(get_origin, kinds) else ''}")
        if {str, SecretStr, Path} & {kind for kind in kinds if isinstance(kind, type)}:
            yield prefix + name


@pytest.mark.parametrize("field", list(texts(settings.Settings)))
def test_a_text_without_utf8_names_its_field(
    field: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    value: object = "s\ud800"
    for name in reversed(field.split(".")):
        value = [value] if name == "0" else {name: value}
    Path("c.yaml").write_text(json.dumps(value))
    code, said = run("config", "--config", "c.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, f"{field}: " in said) == (2, True), said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# " + "x" * 100, "c.yaml cannot be read: it has more than 100 bytes"),
        (f"judge: {{{CHAT}, template: large}}", "judge.template large: it has more than 100 bytes"),
    ],
)
def test_of_a_text_beyond_the_bound(
    text: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_TEXT", 100)
    Path("c.yaml").write_text(text)
    Path("large").write_text("x" * 101)
    code, said = run("config", "--config", "c.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, words in said) == (2, True), said


def test_a_configuration_may_come_through_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe")
    writer = Thread(target=Path("pipe").write_text, args=(JUDGE,))
    writer.start()
    code, said = run("config", "--config", "pipe", capsys=capsys, monkeypatch=monkeypatch)
    writer.join()
    assert (code, said) == (0, "")


def test_a_ready_file_takes_the_place_of_a_file_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe")
    arguments = ("serve", "--config", "c.yaml", "--ready-file", "pipe")
    code, said = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "--ready-file pipe: there is something else than a file" in said) == (2, True), said
    assert Path("pipe").is_fifo()


def test_groups_and_traces_that_are_too_deep_fail_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = run("compare", "deep.jsonl", "out.jsonl", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "failed: line 1: nested too deeply" in said) == (1, True), said
    code, said = run("trace", "check", "deep.jsonl", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "deep.jsonl, line 1: the line is nested too deeply" in said) == (1, True), said


def test_a_full_disk_ends_compare_with_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("full.failed").symlink_to("/dev/full")
    code, said = run("compare", "deep.jsonl", "full", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "genrm-trio: full.failed: No space left on device" in said) == (1, True), said


def test_the_largest_numbers_can_be_used() -> None:
    most, size = settings.MOST, settings.LARGEST
    Path("c.yaml").write_text(
        f"{JUDGE}max_connections: {most}\nmax_request_bytes: {size}\nshutdown_grace_s: {most}\n"
        "aggregator_method: bradley_terry\ncomparison_strategy: all_pairs\n"
        f"num_rollouts_per_prompt: 30000\nmax_comparisons: {most}\n"
    )
    loaded = load(Path("c.yaml")).settings
    assert loaded.max_connections == most
    make_judge(loaded, Unobserved())
