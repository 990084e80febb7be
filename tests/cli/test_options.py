"""Options derived from dataclasses: one place for a field's help, range, spelling and default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from duodec.cli import errors
from duodec.cli.app import app
from duodec.cli.options import GRAMMAR_LIMITS, Options, derived
from duodec.core.sampling.parameters import Parameter, check, fields_of
from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.server.settings import Settings


@dataclass(frozen=True)
class Oven:
    """A record with one field of each kind."""

    heat_c: Annotated[
        float, Parameter("How hot [°C].", "Machine", ("--heat", "-t"), ge=50, lt=math.inf)
    ] = 180.0
    minutes: Annotated[int | None, Parameter("How long.", ge=1)] = None
    fan: Annotated[bool, Parameter("With the fan.")] = False
    shelves: Annotated[tuple[str, ...], Parameter("Which shelves.", flags=("--shelf",))] = ()
    kind: Annotated[str, Parameter("Of heat.", choices=("top", "bottom"))] = "top"
    serial: int = 0  # no option

    def __post_init__(self) -> None:
        check(self)


def parsed(*arguments: str, options: Options = Options()) -> Oven:  # noqa: B008  frozen
    made: list[Oven] = []

    def bake(*, oven: Annotated[Oven, options], dish: str = "pie") -> None:
        """Bake a dish."""
        made.append(oven)

    bake.__annotations__["oven"] = Annotated[Oven, options]
    bake.__annotations__["dish"] = str
    program = typer.Typer()
    program.command()(derived(bake))
    done = CliRunner().invoke(program, list(arguments))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return made[0]


def test_a_command_gets_the_record_that_its_options_fill() -> None:
    assert parsed() == Oven()
    arguments = ("-t", "200", "--minutes", "5", "--fan", "--shelf", "a", "--shelf", "b")
    assert parsed(*arguments, "--kind", "bottom") == Oven(200.0, 5, True, ("a", "b"), "bottom")


def test_a_command_may_choose_among_the_fields_and_have_defaults_of_its_own() -> None:
    assert parsed(options=Options(defaults={"heat_c": 90.0})).heat_c == 90
    assert parsed(options=Options(defaults={"minutes": lambda: 7})).minutes == 7
    for options in (Options(without=("fan",)), Options(only=("minutes",))):
        with pytest.raises(AssertionError, match="No such option"):
            parsed("--fan", options=options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heat", "20"), "heat is 20.0; use 50 or more"),
        (("--heat", "nan"), "heat is nan"),
        (("--heat", "inf"), "heat is inf"),
        (("--minutes", "0"), "minutes is 0; use 1 or more"),
        (("--kind", "side"), "unknown kind 'side'; choose from: top, bottom"),
    ],
)
def test_a_value_out_of_range_is_one_line_about_the_option(
    arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(BadOption) as error:
        parsed(*arguments)
    for typed in (
        arguments,
        ("bake",),
    ):  # as it was typed, or from a file, whose name is the option's
        told: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(errors, "warn", told.append)
            assert errors.report_error(error.value, typed, ()) == 2
        assert told[0].removeprefix("--").startswith(words)


@pytest.mark.parametrize(
    ("command", "record", "absent"),
    [
        ("generate", EngineConfig, ()),
        ("generate", SamplingParams, ()),
        ("chat", EngineConfig, GRAMMAR_LIMITS),
        ("serve", EngineConfig, ()),
        ("serve", Settings, ()),
        (
            "profile",
            EngineConfig,
            (
                "datastore",
                "draft_window",
                "draft_head",
                "draft_weights",
                "draft_parallel",
                "pace",
                *GRAMMAR_LIMITS,
            ),
        ),
    ],
)
def test_every_described_field_is_an_option(
    command: str, record: type, absent: tuple[str, ...]
) -> None:
    found = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    flags = {flag: parameter for parameter in found for flag in parameter.opts}
    for field in fields_of(record).values():
        for flag in field.flags:
            assert (flag in flags) is (field.name not in absent), flag
        if field.name not in absent:
            assert flags[field.flags[0]].help.replace("\\", "") == field.parameter.help
