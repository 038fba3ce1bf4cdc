"""Commands about weights.

What lives here: the table of what is on disk. What stays out: finding and checking files (``encoders.weights``).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from crsbench_assets.cli.display import say, say_json, show_rows
from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.registry import CATALOG, catalog_ids, read_card, weights_place
from crsbench_assets.encoders.weights import weights_state
from crsbench_assets.storage.project import open_project


def show_weights(home: Path | None, *, as_json: bool) -> None:
    """Print where the weights of the home's encoders are, and of the catalogue's that are not active in it."""
    project = open_project(home)
    settings, root = project.registry.settings, project.layout.root
    cards = dict(project.registry.encoders)
    for identifier in catalog_ids("encoders"):
        if identifier not in cards:
            card = read_card(EncoderCard, CATALOG / "encoders" / f"{identifier}.yaml")
            cards[identifier] = card.model_copy(update={"place": weights_place(card, root, settings)})
    active = project.registry.encoders
    with_files = [card for _, card in sorted(cards.items()) if card.weights is not None and card.weights.has_files]
    rows = [asdict(weights_state(card, is_active=card.id in active)) for card in with_files]
    if as_json:
        say_json(rows)
        return
    columns = ("encoder_id", "state", "expected", "sha256", "licence", "remedy")
    show_rows(columns, [[row[name] for name in columns] for row in rows])
    n_ready = sum(row["state"] == "present" for row in rows)
    say(f"{n_ready} of {len(rows)} encoders have their weights on this machine; `--format json` names the files.")
