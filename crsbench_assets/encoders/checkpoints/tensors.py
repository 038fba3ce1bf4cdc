"""Tensors of a checkpoint: read without running any of its code, and every one of them accounted for.

What lives here: reading safetensors and pickled files, which tensors of a file are the network's, the conversion of
pickled files to safetensors, and the comparison with a network's own names. What stays out: where files lie
(``encoders.weights``) and how a format's names become a library's (the modules beside this one).
Source: PyTorch, "torch.load with weights_only=True", https://docs.pytorch.org/docs/stable/notes/serialization.html:
its unpickler builds tensors and plain containers, and refuses any other class that is not allowed by name.

Nothing is dropped silently: a file has the tensors that begin with the card's prefix, those that the card ignores
with a reason, and no others. Loading with ``strict=False`` instead takes a wrong prefix for an untrained network.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.storage.files import read_json, replace_json, storage_errors

if TYPE_CHECKING:
    import torch

WRAPPERS = ("model", "state_dict")
"""Keys under which training scripts keep the model beside their optimiser and settings."""

N_EXAMPLES = 3
"""Names shown of a longer list."""

_ALLOWED = {"argparse.Namespace": argparse.Namespace}


def network_tensors(
    card: EncoderCard, files: Sequence[Path], *, also_ignored: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Return the tensors of an encoder's network by their names in the file, without the card's prefix.

    A pickled file is read once: its tensors are kept as safetensors in the home's cache, and the hashes of both files
    beside them.

    Args:
        card: ``weights.prefix``, ``weights.ignored`` and ``weights.allowed_globals`` say what the files hold.
        files: of one checkpoint; no name occurs in two of them.
        also_ignored: patterns of names that are no network's in any file of this loader.

    Raises:
        ConfigError: a file is damaged or holds other classes than tensors; no name begins with the prefix; tensors
            are left over, stand in two files, or hold no finite numbers.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        if path.suffix == ".safetensors":
            found = _of_safetensors(card, path, also_ignored)
        else:
            found = _of_pickle(card, path, also_ignored)
        if twice := tensors.keys() & found.keys():
            raise ConfigError(
                f"encoder {card.id!r}: {len(twice)} tensor(s) of {path.name} stand in another file as well "
                f"({_examples(twice)}): get the files of one checkpoint."
            )
        tensors |= found
    if not tensors:
        assert card.weights is not None
        where = ", ".join(path.name for path in files)
        raise ConfigError(
            f"encoder {card.id!r}: no tensor of {where} begins with {_said(card)}, so nothing would be "
            "loaded: correct weights.prefix, or name the weights that the card means."
        )
    _refuse_no_numbers(card, tensors)
    return tensors


def load_strictly(card: EncoderCard, network: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors into a network, every one of both by name and shape.

    A tensor that differs from the network's only by axes of length 1 takes the network's shape; numbers become the
    network's type, float32.

    Raises:
        ConfigError: what is missing, left over or of another shape, with examples, in one sentence.
    """
    own = network.state_dict()
    fitted = {name: _fitted(tensor, own.get(name)) for name, tensor in tensors.items()}
    shapes = [
        f"{name} {tuple(fitted[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own.keys() & fitted.keys()
        if own[name].shape != fitted[name].shape
    ]
    faults(card, missing=own.keys() - fitted.keys(), left_over=fitted.keys() - own.keys(), shapes=shapes)
    network.load_state_dict(fitted, strict=True)


def faults(
    card: EncoderCard, *, missing: Collection[str] = (), left_over: Collection[str] = (), shapes: Collection[str] = ()
) -> None:
    """Raise a sentence about tensors that do not fit, if there are any.

    Raises:
        ConfigError: any of the three is not empty.
    """
    assert card.weights is not None
    found = [
        f"{len(names)} tensor(s) {what} ({_examples(names)})"
        for names, what in ((missing, "missing"), (left_over, "left over"), (shapes, "of another shape"))
        if names
    ]
    if found:
        network = card.weights.network or card.weights.hub_id or card.weights.loader
        raise ConfigError(
            f"encoder {card.id!r}: the weights are not those of {network}: {'; '.join(found)}: name the weights that "
            "the card means, or correct weights.prefix, weights.ignored or the network."
        )


def is_ignored(card: EncoderCard, name: str, also_ignored: Collection[str] = ()) -> bool:
    """Whether a tensor of the file is none of the network's, as the card or the loader says."""
    assert card.weights is not None
    return any(fnmatchcase(name, pattern) for pattern in (*card.weights.ignored, *also_ignored))


def _refuse_no_numbers(card: EncoderCard, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors that are no numbers of a network, though their names and shapes may fit.

    Raises:
        ConfigError: 8-bit codes of a quantised file, whose scales stand elsewhere; NaN or infinity, as a training that
            diverged leaves them.
    """
    import torch

    coded = [name for name, tensor in tensors.items() if tensor.element_size() == 1 and tensor.dtype != torch.bool]
    if coded:
        raise ConfigError(
            f"encoder {card.id!r}: {len(coded)} tensor(s) are 8-bit codes of a quantised file ({_examples(coded)}): "
            "get the file in 16 or 32 bits."
        )
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise ConfigError(
            f"encoder {card.id!r}: {len(broken)} tensor(s) hold NaN or infinity ({_examples(broken)}): get the file "
            "again, or name other weights."
        )


def _examples(names: Collection[str]) -> str:
    shown = sorted(names)[:N_EXAMPLES]
    return ", ".join(shown) + (", ..." if len(names) > N_EXAMPLES else "")


def _fitted(tensor: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor in the network's shape where they differ by axes of length 1 only."""
    if like is None or like.shape == tensor.shape:
        return tensor
    same = [size for size in like.shape if size != 1] == [size for size in tensor.shape if size != 1]
    return tensor.reshape(like.shape) if same else tensor


def _said(card: EncoderCard) -> str:
    assert card.weights is not None
    return " or ".join(map(repr, card.weights.prefixes))


def _kept(card: EncoderCard, path: Path, names: Collection[str], also_ignored: Collection[str]) -> dict[str, str]:
    """Return the names that are the network's, without the prefix -> as in the file.

    Raises:
        ConfigError: a name is neither the network's nor ignored, or the file has tensors under two prefixes.
    """
    assert card.weights is not None
    wanted = [name for name in names if not is_ignored(card, name, also_ignored)]
    found = [prefix for prefix in card.weights.prefixes if any(name.startswith(prefix) for name in wanted)]
    left_over = [name for name in wanted if not name.startswith(tuple(found[:1]))]
    if found and left_over:
        raise ConfigError(
            f"encoder {card.id!r}: {path.name} holds {len(left_over)} tensor(s) that neither begin with {found[0]!r} "
            f"nor are ignored ({_examples(left_over)}): name them in weights.ignored with a reason, or correct "
            "weights.prefix."
        )
    return {name.removeprefix(found[0]): name for name in wanted} if found else {}


def _of_safetensors(card: EncoderCard, path: Path, also_ignored: Collection[str]) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stream:
            names = _kept(card, path, stream.keys(), also_ignored)
            return {own: stream.get_tensor(name) for own, name in names.items()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"encoder {card.id!r}: {path} is damaged ({reason_of(error)}): get it again.") from None


def _of_pickle(card: EncoderCard, path: Path, also_ignored: Collection[str]) -> dict[str, torch.Tensor]:
    assert card.weights is not None
    if card.place is None:
        return _unpickled(card, path, also_ignored)
    from crsbench_assets.encoders.weights import file_sha256

    source = file_sha256(card, path)
    name = content_hash([source, card.weights.model_dump(mode="json"), sorted(also_ignored)])
    converted = Path(card.place.cache) / f"{name}.safetensors"
    record = converted.with_suffix(".json")
    known = read_json(record) if converted.is_file() else None
    if not (isinstance(known, dict) and known.get("sha256") == file_sha256(card, converted)):
        tensors = _unpickled(card, path, also_ignored)
        if not tensors:
            return {}
        _save(tensors, converted)
        said = {"source": path.name, "source_sha256": source, "sha256": file_sha256(card, converted)}
        replace_json(record, said)
    from safetensors.torch import load_file

    kept: dict[str, torch.Tensor] = load_file(converted)
    return kept


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _unpickled(card: EncoderCard, path: Path, also_ignored: Collection[str]) -> dict[str, torch.Tensor]:
    import torch

    assert card.weights is not None
    allowed: list[Any] = [_ALLOWED[name] for name in card.weights.allowed_globals]
    try:
        with torch.serialization.safe_globals(allowed):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names the class {named.group(1)}" if named else "is damaged, or holds other things than tensors"
        raise ConfigError(
            f"encoder {card.id!r}: {path} {what}, and reading it could run code: get a file of tensors alone, or, for "
            "a class that runs nothing, name it in weights.allowed_globals."
        ) from None
    except Exception as error:  # bytes that are no pickle end in any error of the unpickler
        raise ConfigError(f"encoder {card.id!r}: {path} is damaged ({reason_of(error)}): get it again.") from error
    tensors = _state(content)
    if tensors is None:
        raise ConfigError(f"encoder {card.id!r}: {path} holds no mapping of names to tensors: name another file.")
    return {own: tensors[name] for own, name in _kept(card, path, tensors, also_ignored).items()}


def _state(content: Any) -> dict[str, torch.Tensor] | None:
    """Return the tensors by name, of a file or of its model; None where it has none."""
    import torch

    for wrapper in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        return None
    is_plain = all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items())
    return dict(content) if is_plain else None
