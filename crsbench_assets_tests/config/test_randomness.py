"""Draws depend on names alone, and are the same for ever."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crsbench_assets.config.randomness import keyed_generator, keyed_ranks

GOLDEN_RANKS = [6887328072267670052, 9857395878189661867, 4580937710705624984]
GOLDEN_INTEGERS = [7472831511861124375, 6679920875386372552, 5863257362802422280]


def test_golden_values() -> None:
    # whoever changes these changes every split and every interval that was ever published
    assert keyed_ranks(["a", "b", "c"], "test", "isic2019").tolist() == GOLDEN_RANKS
    assert keyed_generator("test", "isic2019", 0).integers(0, 2**63, 3).tolist() == GOLDEN_INTEGERS


def test_another_process_draws_the_same() -> None:
    # Python's own hash of a string differs between processes; ours must not
    code = (
        "from crsbench_assets.config.randomness import keyed_ranks, keyed_generator;"
        "print(keyed_ranks(['a', 'b', 'c'], 'test', 'isic2019').tolist(),"
        "keyed_generator('test', 'isic2019', 0).integers(0, 2**63, 3).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{GOLDEN_RANKS} {GOLDEN_INTEGERS}"


@given(st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=30), st.data())
def test_removing_ids_never_changes_the_number_of_another(ids: list[str], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(ids), unique=True))
    number_of = dict(zip(ids, keyed_ranks(ids, "x").tolist(), strict=True))
    assert keyed_ranks(kept, "x").tolist() == [number_of[identifier] for identifier in kept]


def test_names_are_kept_apart() -> None:
    assert keyed_ranks(["a"], "ab", "c").tolist() != keyed_ranks(["a"], "a", "bc").tolist()
    assert keyed_ranks(["a"], "x", 1).tolist() != keyed_ranks(["a"], "x", 2).tolist()
    assert keyed_generator("x", "1").integers(2**62) != keyed_generator("x1").integers(2**62)
    assert keyed_generator("x", "y").integers(2**62) != keyed_generator("y", "x").integers(2**62)


def test_a_number_and_its_text_are_one_name() -> None:
    assert keyed_generator("x", 0.1).integers(2**62) == keyed_generator("x", "0.1").integers(2**62)


def test_no_ids_give_no_ranks() -> None:
    ranks = keyed_ranks([], "x")
    assert ranks.shape == (0,) and ranks.dtype == np.uint64


def test_ranks_are_spread_evenly() -> None:
    # 16 bins of 10,000 draws: chi-square with 15 degrees of freedom is below 37.7 in 99.9 % of all keys
    ranks = keyed_ranks([str(i) for i in range(10_000)], "spread")
    counts = np.bincount((ranks >> np.uint64(60)).astype(np.int64), minlength=16)
    assert ((counts - 625.0) ** 2 / 625.0).sum() < 37.7
