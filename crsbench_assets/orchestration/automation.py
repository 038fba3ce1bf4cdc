"""When Dagster acts by itself.

What lives here: the one condition of pooled assets. What stays out: cells, which the planner asks for through
``registry_sensor``: eager chains are never requested for keys that were there first, and a blocking check in a
condition splits a chain into one run per layer. Evidence: ``docs/architecture.md``.
"""

from __future__ import annotations

import dagster as dg


def changed_since_handled(minutes: int) -> dg.AutomationCondition[dg.AssetKey]:
    """Return the condition of a pooled asset: an input changed since it was handled, at most every ``minutes``.

    It does not wait for cells that are missing or running, so the leaderboard moves during a long backfill and after
    a run that was killed; ``eager()`` would wait for both. Handled means requested, not updated: a cell that finishes
    while scores are computed has changed since, though the scores are newer than it.
    """
    updated = dg.AutomationCondition.any_deps_updated()
    # a tick hears of the last request together with what came after it, and in `since` the reset wins
    changed = updated.since(dg.AutomationCondition.newly_requested() & ~updated)
    due = dg.AutomationCondition.cron_tick_passed(f"*/{minutes} * * * *").since(
        dg.AutomationCondition.newly_requested()
    )
    return (changed & due & ~dg.AutomationCondition.in_progress()).with_label(
        f"an input changed since handled, at most every {minutes} minutes"
    )
