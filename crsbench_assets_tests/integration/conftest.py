"""Homes that the tests copy: computed once, with a frozen panel, and the same with one encoder more."""

from __future__ import annotations

import pytest

from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.integration.homes import add_encoder, change_settings, copy_home, make_home, succeed


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    """A home of two encoders on two cohorts, everything current, panel ``base`` frozen; tests copy it.

    It is filled by two processes that meet in a home without databases.
    """
    layout = make_home(tmp_path_factory.mktemp("filled") / "home", settings="workers: 2")
    succeed(layout, "materialize")
    change_settings(layout, "workers: 1")
    succeed(layout, "panel", "freeze", "base")
    return layout


@pytest.fixture(scope="session")
def extended(filled: HomeLayout, tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    """A copy of ``filled`` with the encoder ``enc-a`` computed by an undisturbed ``materialize``."""
    layout = copy_home(filled, tmp_path_factory.mktemp("extended") / "home")
    add_encoder(layout, "enc-a")
    succeed(layout, "materialize")
    return layout
