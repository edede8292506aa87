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


@pytest.mark.parametrize(
    ("alias", "name"),
    [("nope", "none"), ("nezha", "sinusoidal-relative"), ("rotary", "rope")],
)
def test_an_alias_is_the_scheme(alias, name):
    assert positions.parse(alias).name == name


def test_an_option_has_the_names_of_other_code():
    assert positions.parse("shaw(max_relative_position=9)").options.clip == 9
    assert positions.parse("t5(num_buckets=8)").options.buckets == 8


@pytest.mark.parametrize(
    "text", ["learned+shaw(clip=32,values=false)", "shaw+alibi", "rope(base=1000000.0)+t5"]
)
def test_a_sum_is_read_and_written(text):
    assert str(positions.parse(text)) == text


def test_a_plus_in_a_number_is_no_sum():
    assert positions.parse("rope(base=1e+4)").options.base == 10000


def test_a_sum_promises_what_all_its_parts_promise():
    both = positions.parse("learned+shaw")
    assert both.bounded and both.needs_scores and not both.translation_invariant
    assert both.places == ("embedding", "score", "value")
    assert positions.parse("rope+t5").translation_invariant


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
        ("learned+sinusoidal", "two schemes of one family (embedding)"),
        ("shaw+nezha", "two schemes of one family (relative vectors)"),
        ("alibi+t5", "two schemes of one family (scalar bias)"),
        ("rope+rope(base=500)", "two schemes of one family (query/key map)"),
        ("none+shaw", "'none' stands alone"),
        ("shaw(clip=0)", "clip=0 must be 1 or more"),
        ("shaw(clip=2.5)", "takes a whole number, not '2.5'"),
        ("shaw(values=maybe)", "takes true or false, not 'maybe'"),
        ("nezha(clip=x)", "takes a whole number or none, not 'x'"),
        ("nezha(released=true)", "released=true needs a clip"),
        ("rope(fraction=0)", "fraction=0 must be above 0"),
        ("rope(pairing=other)", "pairing=other is not one of half, interleaved"),
        ("t5(buckets=6)", "buckets=6 must be a multiple of 4"),
        ("t5(max_distance=32)", "max_distance=32 must be above buckets=32"),
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
