"""Which encoders, datasets and protocol a home works with.

What lives here: available cards (the catalogue and the home's own), active cards (listed in ``crsbench.yaml`` or
lying in the home), and the content-addressed snapshot that a run works from, so that a worker on another machine
needs no card file. What stays out: the cells they span (``cells``) and the state of the lake (``storage``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from crsbench_assets.config.cards import DatasetCard, EncoderCard, Source, WeightsPlace
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.config.settings import Settings, read_settings
from crsbench_assets.config.yaml_files import parse_model, read_yaml

CATALOG = Path(__file__).parent / "catalog"

Card = TypeVar("Card", EncoderCard, DatasetCard)


@dataclass(frozen=True)
class Registry:
    """The active cards, protocol and settings of a home at one moment."""

    protocol: Protocol
    settings: Settings
    encoders: Mapping[str, EncoderCard]
    datasets: Mapping[str, DatasetCard]

    @cached_property
    def snapshot(self) -> dict[str, Any]:
        """JSON form from which :func:`registry_from_snapshot` makes an equal registry."""
        return {
            "protocol": self.protocol.model_dump(mode="json"),
            "settings": self.settings.model_dump(mode="json"),
            "encoders": {key: card.model_dump(mode="json") for key, card in sorted(self.encoders.items())},
            "datasets": {key: card.model_dump(mode="json") for key, card in sorted(self.datasets.items())},
        }

    @cached_property
    def hash(self) -> str:
        """Content hash of the snapshot."""
        return content_hash(self.snapshot)

    def encoder(self, encoder_id: str) -> EncoderCard:
        """Return an active encoder's card.

        Raises:
            ConfigError: naming the card to add.
        """
        return _active(self.encoders, encoder_id, "encoder")

    def dataset(self, dataset_id: str) -> DatasetCard:
        """Return an active dataset's card.

        Raises:
            ConfigError: naming the card to add.
        """
        return _active(self.datasets, dataset_id, "dataset")


def _active(cards: Mapping[str, Card], identifier: str, kind: str) -> Card:
    if identifier not in cards:
        raise ConfigError(
            f"No active card describes the {kind} {identifier!r}: add {kind}s/{identifier}.yaml to the home (or "
            f"`crsbench {kind}s add {identifier}` for a catalogue card), or remove the key with "
            "`crsbench reconcile --remove-unknown-keys`."
        )
    return cards[identifier]


def registry_from_snapshot(snapshot: Mapping[str, Any]) -> Registry:
    """Return the registry that a snapshot describes.

    Raises:
        ConfigError: another release of crsbench wrote it, with other fields.
    """
    try:
        return Registry(
            protocol=Protocol.model_validate(snapshot["protocol"]),
            settings=Settings.model_validate(snapshot["settings"]),
            encoders={key: EncoderCard.model_validate(card) for key, card in snapshot["encoders"].items()},
            datasets={key: DatasetCard.model_validate(card) for key, card in snapshot["datasets"].items()},
        )
    except (KeyError, ValidationError) as error:
        detail = " ".join(str(error).split())
        raise ConfigError(
            "The registry snapshot of this run does not fit this crsbench, so another release wrote it: start the run "
            f"again, which writes a new one ({detail})."
        ) from None


def load_registry(home: Path) -> Registry:
    """Return the registry of a home as its files stand now.

    Raises:
        ConfigError: a bad file, an unknown or duplicate id, in one sentence.
    """
    settings = read_settings(home / "crsbench.yaml")
    encoders = _active_cards(EncoderCard, "encoders", home, settings.encoders)
    datasets = _active_cards(DatasetCard, "datasets", home, settings.datasets)
    return Registry(
        protocol=load_protocol(settings.protocol, home),
        settings=settings,
        encoders={key: _placed_encoder(card, folder, home, settings) for key, (card, folder) in encoders.items()},
        datasets={key: _absolute_dataset(card, folder, home, settings) for key, (card, folder) in datasets.items()},
    )


def load_protocol(name: str, home: Path) -> Protocol:
    """Return a protocol of the catalogue by id, or of a YAML file relative to the home."""
    path = CATALOG / "protocols" / f"{name}.yaml"
    if not path.exists():
        path = home / name
    if not path.is_file():
        known = ", ".join(catalog_ids("protocols"))
        raise ConfigError(f"protocol {name!r} is neither in the catalogue ({known}) nor a YAML file in {home}.")
    return parse_model(Protocol, read_yaml(path), path)


def catalog_ids(kind: str) -> list[str]:
    """Return the sorted ids of the catalogue's ``encoders``, ``datasets`` or ``protocols``."""
    return sorted(path.stem for path in (CATALOG / kind).glob("*.yaml"))


def read_card(model: type[Card], path: Path) -> Card:
    """Return the card of a file, whose name must be its id.

    Raises:
        ConfigError: in one sentence, with every fault of the file.
    """
    card = parse_model(model, read_yaml(path), path)
    if card.id != path.stem:
        raise ConfigError(f"{path} holds the id {card.id!r}: a card's file is named after its id.")
    return card


def home_card_files(home: Path, kind: str) -> list[Path]:
    """Return the card files lying in a home."""
    return sorted((home / kind).glob("*.yaml"))


def _active_cards(model: type[Card], kind: str, home: Path, listed: Iterable[str]) -> dict[str, tuple[Card, Path]]:
    own = {path.stem: path for path in home_card_files(home, kind)}
    available = set(catalog_ids(kind))
    for identifier in sorted(own.keys() & available):
        raise ConfigError(
            f"{own[identifier]} reuses the id {identifier!r} of a catalogue card: an id always means the same "
            "content. Give your card another id and file name."
        )
    cards = {}
    for identifier in dict.fromkeys(listed):
        if identifier in own:
            continue
        if identifier not in available:
            raise ConfigError(
                f"{home / 'crsbench.yaml'}: {kind} lists {identifier!r}, which is neither a catalogue card "
                f"({', '.join(sorted(available))}) nor a file in {home / kind}."
            )
        path = CATALOG / kind / f"{identifier}.yaml"
        cards[identifier] = (read_card(model, path), path.parent)
    for identifier, path in own.items():
        cards[identifier] = (read_card(model, path), path.parent)
    return dict(sorted(cards.items()))


def _placed_encoder(card: EncoderCard, folder: Path, home: Path, settings: Settings) -> EncoderCard:
    """Return an encoder with absolute places: vectors start at the card's folder, weights at the home."""
    vectors = {key: tuple(_absolute(name, folder) for name in names) for key, names in card.vectors.items()}
    return card.model_copy(update={"vectors": vectors, "place": weights_place(card, home, settings)})


def weights_place(card: EncoderCard, home: Path, settings: Settings) -> WeightsPlace | None:
    """Return where a home keeps the weights of an encoder; None for one without weights of its own."""
    if card.weights is None or card.kind == "baseline":
        return None
    return WeightsPlace(
        named=_absolute(settings.weights.get(card.id), home),
        folder=str(home.absolute() / "weights" / card.id),
        cache=str(home.absolute() / "cache" / "weights" / card.id),
    )


def _absolute_dataset(card: DatasetCard, folder: Path, home: Path, settings: Settings) -> DatasetCard:
    update: dict[str, Any] = {"source": _absolute_source(card.source, card.id, folder, home, settings)}
    if card.shift:
        shifted = _absolute_source(card.shift.source, card.shift.id, folder, home, settings)
        update["shift"] = card.shift.model_copy(update={"source": shifted})
    return card.model_copy(update=update)


def _absolute_source(source: Source, identifier: str, folder: Path, home: Path, settings: Settings) -> Source:
    """Return a source with absolute places: those of a card start at its folder, those of the settings at the home."""
    root = settings.roots.get(identifier)
    update = {
        "manifest": _absolute(source.manifest, folder),
        "root": _absolute(source.root, folder) if root is None else _absolute(root, home),
    }
    return source.model_copy(update=update)


def _absolute(name: str | None, folder: Path) -> str | None:
    return None if name is None else str((folder / Path(name).expanduser()).resolve())


def without_retired(registry: Registry) -> Registry:
    """Return the registry without retired encoders: those that are computed and ranked."""
    retired = set(registry.settings.retired)
    return replace(registry, encoders={k: c for k, c in registry.encoders.items() if k not in retired})
