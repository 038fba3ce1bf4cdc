"""When pooled assets are asked for, tick by tick, with one cell asset and one pooled asset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg

from crsbench_assets.orchestration.automation import changed_since_handled

CELL, SCORES = dg.AssetKey("cell"), dg.AssetKey("scores")
START = datetime(2026, 1, 5, 12, 1, tzinfo=UTC)


class Daemon:
    """Evaluates the condition at minutes after the start, as the automation sensor does."""

    def __init__(self) -> None:
        scores = dg.AssetSpec(SCORES, deps=[CELL], automation_condition=changed_since_handled(5))
        self.instance = dg.DagsterInstance.ephemeral()

        @dg.multi_asset(specs=[dg.AssetSpec(CELL)])
        def cell() -> None: ...

        @dg.multi_asset(specs=[scores])
        def pooled() -> None: ...

        self._definitions = dg.Definitions(assets=[cell, pooled])
        self._cursor = None

    def asks_at(self, minutes: int) -> bool:
        result = dg.evaluate_automation_conditions(
            self._definitions, self.instance, cursor=self._cursor, evaluation_time=START + timedelta(minutes=minutes)
        )
        self._cursor = result.cursor
        return result.get_num_requested(SCORES) == 1

    def update(self, key: dg.AssetKey) -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(key))


def test_a_cell_that_finishes_while_scores_are_computed_is_scored_next() -> None:
    daemon = Daemon()
    assert not daemon.asks_at(0)
    daemon.update(CELL)
    assert daemon.asks_at(5), "request"
    daemon.update(CELL)  # while the scores are computed from what was there before
    daemon.update(SCORES)
    assert not daemon.asks_at(6), "at most every five minutes"
    assert daemon.asks_at(10)


def test_scores_that_were_asked_for_are_not_asked_for_again() -> None:
    daemon = Daemon()
    assert not daemon.asks_at(0)
    daemon.update(CELL)
    assert daemon.asks_at(5)
    daemon.update(SCORES)
    assert not any(daemon.asks_at(minutes) for minutes in (6, 10, 15, 20))
