"""Which synchronization models there are, and how a run names one."""

from pathlib import Path

import pytest

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model, models
from offbeat_scheduler.models.adsp import ADSP
from offbeat_scheduler.models.fixed_adacomm import FixedAdaComm
from support.virtual import run_settings

NAMES = (
    "adacomm",
    "adsp",
    "asp",
    "batchtune-bsp",
    "batchtune-fixed-adacomm",
    "bsp",
    "fedavg",
    "fedbuff",
    "fedcompass",
    "fixed-adacomm",
    "mel-async",
    "mel-eta",
    "mel-sync",
    "ssp",
)


def make(sync):
    run = run_settings(sync)
    return make_model(run.sync, run)


def test_every_model_is_found_by_its_name():
    assert set(NAMES) == set(models())
    assert all(model.name == name for name, model in models().items())


def test_a_short_form_gives_the_models_short_option():
    model = make("fixed-adacomm:4")
    assert isinstance(model, FixedAdaComm)
    assert model.options.tau == 4
    assert make("adsp:3").options.rate == 3


def test_an_older_name_is_an_alias_of_the_same_class():
    model = make("local-sgd:4")
    assert isinstance(model, FixedAdaComm)
    assert model.options.tau == 4
    assert "local-sgd" not in models()


def test_options_are_given_as_a_mapping():
    model = make({"adsp": {"search": "source", "overlap": False, "epoch_s": 60}})
    assert isinstance(model, ADSP)
    assert (model.options.search, model.options.overlap, model.options.epoch_s) == ("source", False, 60)


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        ("adps", ["sync", "'adps'", "did you mean 'adsp'?"]),
        ("bsp:3", ["sync", "'bsp:3'", "takes no value"]),
        ("fixed-adacomm:x", ["sync.fixed-adacomm", "tau", "'x'"]),
        ("local-sgd:0", ["sync.local-sgd", "tau", "0"]),
        ({"adsp": {"rat": 3}}, ["sync.adsp", "rat: unknown key", "did you mean 'rate'?"]),
        ({"adsp": {"rate": 0}}, ["sync.adsp", "rate", "0"]),
        ({"adsp": {"search": "sorce"}}, ["sync.adsp", "search", "'sorce'"]),
        ({"adsp": {"rate": 3, "search": "robust"}}, ["sync.adsp", "rate: 3", "search: robust"]),
    ],
)
def test_bad_input_names_field_value_and_remedy(sync, said):
    with pytest.raises(OffbeatError) as error:
        make(sync)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_every_option_is_described():
    for model in models().values():
        for name, field in model.Options.model_fields.items():
            assert field.description, f"{model.name}.{name}"


def options_table():
    """What docs/models.md says of options, from the models themselves."""
    lines = ["| model | option | default | |", "|---|---|---|---|"]
    for name, model in models().items():
        for option, field in model.Options.model_fields.items():
            shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            shown = "" if field.default is None else shown
            lines.append(f"| `{name}` | `{option}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


def test_the_docs_show_each_model_and_each_option_with_its_default():
    docs = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    overview = docs.partition("### Options")[0]
    assert [name for name in models() if f"`{name}`" not in overview] == []
    assert options_table() in docs, f"docs/models.md, Options, should read:\n\n{options_table()}"
