"""eval_position_stride.py: other ids than the trained ones, each beside its control."""

import pytest

from pe_fairseq.evaluation import extrapolation, position_stride, results


def measure(checkpoint, data, path, *arguments):
    position_stride.main([str(checkpoint), str(data), "--results-path", str(path), *arguments])
    return {
        (
            line["signature"]["position_stride"],
            line["signature"]["position_offset"],
            line["signature"]["window"],
        ): line
        for line in results.read(path)
    }


@pytest.fixture(scope="module")
def trained_rope(train, tmp_path_factory):
    folder, _ = train(tmp_path_factory.mktemp("rope"), position="rope")
    return folder / "checkpoint_last.pt"


def test_each_row_has_a_control_of_the_same_window(trained, data, tmp_path):
    found = measure(trained, data, tmp_path / "r")
    assert set(found) == {
        *((1, 0, 64), (2, 0, 32), (1, 0, 32), (4, 0, 16), (1, 0, 16), (8, 0, 8), (1, 0, 8)),
        *((1, 32, 32), (1, 512, 32)),
    }
    assert found[4, 0, 16]["nats"] != found[1, 0, 16]["nats"]
    assert found[1, 512, 32]["nats"] != found[1, 0, 32]["nats"]


def test_ids_are_those_of_model_overrides(trained, data, tmp_path):
    found = measure(trained, data, tmp_path / "r", "--strides", "4", "--offsets", "5")
    for (stride, offset, window), line in found.items():
        path = tmp_path / f"{stride}-{offset}-{window}"
        overrides = {"decoder_position_stride": stride, "decoder_position_offset": offset}
        extrapolation.main(
            [str(trained), str(data), "--lengths", str(window), "--results-path", str(path)]
            + ["--model-overrides", str(overrides)]
        )
        [expected] = results.read(path)
        assert line["nats"] == pytest.approx(expected["nats"], rel=1e-9)


def test_a_shift_invariant_scheme_ignores_offsets_and_sees_strides(
    trained_rope, data, tmp_path
):
    found = measure(trained_rope, data, tmp_path / "r", "--strides", "4")
    control = found[1, 0, 32]["nats"]
    assert found[1, 32, 32]["nats"] == pytest.approx(control, rel=1e-5)
    assert found[1, 512, 32]["nats"] == pytest.approx(control, rel=1e-5)
    assert abs(found[4, 0, 16]["nats"] / found[1, 0, 16]["nats"] - 1) > 1e-5


def test_a_learned_table_is_undefined_beyond_its_end(trained_learned, data, tmp_path, capsys):
    found = measure(
        trained_learned, data, tmp_path / "r", "--strides", "2", "--offsets", "32,33"
    )
    assert "undefined" not in found[2, 0, 32] and "undefined" not in found[1, 32, 32]
    assert "position 64 is beyond" in found[1, 33, 32]["undefined"]
    assert "undefined" in capsys.readouterr().out


def test_the_control_of_a_model_trained_with_a_stride_has_that_stride(train, data, tmp_path):
    folder, _ = train(tmp_path / "4", "--decoder-position-stride", 4)
    found = measure(
        folder / "checkpoint_last.pt", data, tmp_path / "r", "--strides", "2", "--offsets", "32"
    )
    assert set(found) == {(8, 0, 32), (4, 0, 32), (4, 32, 32)}


def test_refusals(trained, stock_checkpoint, data, capsys):
    for arguments, message in (
        ([trained, data, "--strides", "128"], "stride 128 leaves no window"),
        ([trained, data, "--offsets", "-1"], "-1 must be 0 or more"),
        ([trained, data, "--offsets", "20000000"], "must stay below"),
        (
            [trained, data, "--model-overrides", "{'decoder_position_stride': 2}"],
            "--strides and --offsets say the ids",
        ),
        ([stock_checkpoint, data], "pe-fairseq convert"),
    ):
        with pytest.raises(SystemExit) as error:
            position_stride.main(list(map(str, arguments)))
        assert message in f"{error.value.code}{capsys.readouterr().err}"
