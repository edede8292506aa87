import pytest

from pe_fairseq import positions
from pe_fairseq.errors import UserError


@pytest.mark.parametrize("name", positions.SCHEMES)
def test_a_name_alone_is_a_spec(name):
    assert str(positions.parse(name)) == name
    assert str(positions.parse(f" {name}() ")) == name


def test_options_are_read_with_their_types():
    scheme = positions.parse("sinusoidal( layout = interleaved, base=500 )")
    assert scheme.options.layout == "interleaved"
    assert scheme.options.base == 500.0
    assert str(scheme) == "sinusoidal(layout=interleaved,base=500.0)"
    assert str(positions.parse(str(scheme))) == str(scheme)


def test_an_alias_is_the_scheme():
    assert positions.parse("nope").name == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sinusoidl", "unknown position scheme 'sinusoidl' (did you mean 'sinusoidal'?)"),
        ("", "cannot read ''"),
        ("learned(", "cannot read 'learned('"),
        ("learned)", "cannot read 'learned)'"),
        ("learned(clip=3)", "'learned' has no option 'clip'; its options: it has none"),
        ("sinusoidal(bas=3)", "no option 'bas' (did you mean 'base'?)"),
        ("sinusoidal(base=big)", "takes a number, not 'big'"),
        ("sinusoidal(base=1)", "base=1 must be a finite number above 1"),
        ("sinusoidal(base=nan)", "must be a finite number"),
        ("sinusoidal(base=inf)", "must be a finite number"),
        ("sinusoidal(base)", "needs a value: base=…"),
        ("sinusoidal(base=)", "needs a value: base=…"),
        ("sinusoidal(base=3,base=4)", "given twice"),
        ("sinusoidal(layout=both)", "layout=both is not one of halves, interleaved"),
        ("${task.data}", "contains '${'"),
        ("learned+sinusoidal", "schemes of one place (the embedding): learned, sinusoidal"),
        ("learned+", "cannot read ''"),
    ],
)
def test_what_is_wrong_is_named(text, message):
    with pytest.raises(UserError) as error:
        positions.parse(text)
    assert message in str(error.value)


def test_an_unknown_scheme_lists_what_exists():
    with pytest.raises(UserError) as error:
        positions.parse("xyz")
    assert all(name in str(error.value) for name in positions.SCHEMES)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        positions.register("nope")(positions.SCHEMES["learned"])
