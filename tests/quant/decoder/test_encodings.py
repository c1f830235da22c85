"""What integers mean: rules that hold for every range, and for every tensor of a decoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quant.decoder.encodings import (
    CODES,
    CodeType,
    Encoding,
    Encodings,
    Settings,
    affine,
    choose_encodings,
    frame_codes,
    shares,
)
from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import Key
from quant.decoder.ranges import Ranges
from tests.quant.decoder.small import encodings, known, ranges

numbers = st.floats(-1e4, 1e4, width=32)
dtypes = st.sampled_from(("uint8", "uint16"))


# ---- one encoding ----


@given(numbers, numbers, dtypes)
def test_zero_is_exact_and_the_range_is_spanned(one: float, other: float, dtype: CodeType) -> None:
    low, high = min(one, other), max(one, other)
    e = affine(low, high, dtype)
    assert 0 <= e.zero_point < CODES[dtype]
    assert float(np.float32(e.scale)) == e.scale > 0
    zero = e.quantise(np.zeros(1, np.float32))
    assert zero.dtype == dtype
    assert zero.item() == e.zero_point
    assert e.dequantise(zero).item() == 0.0
    slack = e.scale * 0.51 + 1e-5 * max(abs(low), abs(high))
    assert e.low <= min(low, 0) + slack
    assert e.high >= max(high, 0) - slack


@given(numbers, numbers, dtypes)
def test_every_code_survives_a_number(one: float, other: float, dtype: CodeType) -> None:
    """Else a cache would drift behind float ports."""
    e = affine(min(one, other), max(one, other), dtype)
    codes = np.arange(CODES[dtype], dtype=dtype)
    np.testing.assert_array_equal(e.quantise(e.dequantise(codes)), codes)


@given(numbers, numbers)
def test_widening_is_exact(one: float, other: float) -> None:
    e = affine(min(one, other), max(one, other), "uint8")
    codes = np.arange(256, dtype=np.uint8)
    wide = e.widened()
    np.testing.assert_array_equal(wide.dequantise(wide.quantise(e.dequantise(codes))), e.dequantise(codes))


def test_frames_reach_both_ends() -> None:
    for dtype in ("uint8", "uint16"):
        e = frame_codes(dtype)  # type: ignore[arg-type]
        ends = e.dequantise(e.quantise(np.array([-5, -1, 0, 1, 5], np.float32)))
        np.testing.assert_allclose(ends, [e.low, -1, 0, 1, 1], rtol=1e-6)
        assert e.low > -1.01


def test_shares_are_fractions_of_the_codes() -> None:
    assert shares("uint8") == Encoding(1 / 256, 0, "uint8")
    assert shares("uint16") == Encoding(1 / 65536, 0, "uint16")
    even = np.full(2400, 1 / 2400, np.float32)  # of a tile of 60 × 40
    assert not shares("uint8").quantise(even).any()
    assert shares("uint16").dequantise(shares("uint16").quantise(even)).sum() == pytest.approx(1, abs=0.02)


# ---- all encodings of a decoder ----


def test_a_cache_has_one_encoding_wherever_it_is() -> None:
    e = encodings()
    later = [k.name.removeprefix("cache.") for k in known().group_of if k.name.startswith("cache.")]
    assert len(later) == 15
    for name in later:
        same = {
            e.stored(Key("first", f"next_cache.{name}")),
            e.stored(Key("later", f"next_cache.{name}")),
            e.stored(Key("later", f"cache.{name}")),
            e.stored(Key("later", f"{name}.frames")),
        }
        assert len(same) == 1, name


@pytest.mark.parametrize("name", ["latent", "frames"])
def test_ports_have_one_encoding_in_both_graphs(name: str) -> None:
    assert encodings().stored(Key("first", name)) == encodings().stored(Key("later", name))


def test_sigmoids_and_shares_are_fixed() -> None:
    e = encodings(frozenset())
    assert e.stored(Key("later", "act_out.sigmoid")) == shares("uint8")
    assert e.stored(Key("later", "mid_block.attentions.0.shares")) == shares("uint16")


def test_the_mean_has_one_encoding_with_and_without_its_epsilon() -> None:
    e = encodings()
    assert e.stored(Key("later", "norm_out.mean")) == e.stored(Key("later", "norm_out.mean.eps"))


def test_the_cut_of_an_upsampling_in_time_keeps_its_sides_apart() -> None:
    """The two graphs differ there: one encoding by name alone would tie a cache to what comes of it."""
    name = "up_blocks.0.upsamplers.0"
    groups = known().group_of
    assert groups[Key("later", f"cache.{name}.time_conv")] != groups[Key("later", f"{name}.time_conv")]


def test_chosen_groups_are_wide_and_no_others() -> None:
    wide = frozenset({"act_out", "conv_in"})
    attention = {"mid_block.attentions.0.shares", "mid_block.attentions.0.seen"}
    assert set(known().attention) == attention
    assert set(encodings(wide).wide) == wide | attention
    with pytest.raises(DecoderQuantError, match="no group"):
        encodings(frozenset({"nothing"}))


def test_headroom_and_percentile() -> None:
    key = Key("later", "conv_in")
    tight, roomy = (encodings(frozenset(), Settings(headroom=h)).stored(key) for h in (1.0, 1.5))
    assert roomy.scale == pytest.approx(1.5 * tight.scale, rel=1e-5)
    cut = encodings(frozenset(), Settings(percentile=99.0, headroom=1.0)).stored(key)
    assert cut.scale < tight.scale
    wide = (encodings(frozenset({"conv_in"}), Settings(percentile=p)).stored(key) for p in (99.0, 100.0))
    assert len(set(wide)) == 1
    with pytest.raises(ValueError, match="percentile"):
        encodings(frozenset(), Settings(percentile=40.0))
    with pytest.raises(ValueError, match="headroom"):
        Settings(headroom=0.9)


def test_encodings_are_text_and_back() -> None:
    e = encodings()
    again = Encodings.from_json(e.to_json())
    assert again == e
    assert again.to_json() == e.to_json()


def test_a_tensor_that_was_not_observed_is_named() -> None:
    rest = {key: r for key, r in ranges().ranges.items() if key.name != "latent"}
    with pytest.raises(DecoderQuantError, match=r"range is not known.*'latent'"):
        choose_encodings(known(), Ranges(rest, 1))
    with pytest.raises(DecoderQuantError, match=r"no encoding.*'other'"):
        encodings().stored(Key("later", "other"))
