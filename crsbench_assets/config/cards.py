"""Cards: what is known about one encoder or one dataset.

What lives here: the typed form of ``encoders/*.yaml`` and ``datasets/*.yaml``, and which of their fields are the
identity of an id. What stays out: where cards come from and which are active (``registry``), and the code that
loads what a card names (``encoders``, ``data.sources``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from crsbench_assets.config.ids import ID_PATTERN, ID_RULE

Task = Literal["single_label", "ordinal", "multi_label"]
Exposure = Literal["seen", "not_seen", "unknown"]

LOADERS = (
    "baselines.handcrafted",
    "baselines.random_vit",
    "checkpoints.biovil",
    "checkpoints.chexzero",
    "checkpoints.efficientnet_lite",
    "checkpoints.llava_med",
    "checkpoints.panderm",
    "checkpoints.retfound",
    "open_clip",
    "timm",
    "transformers",
)
"""Ways to load weights that this version has (``weights.loader``), beside ``module:Class`` of an installed package;
other cards are known and not computed."""

IMAGE_KINDS = ("timm", "open_clip", "transformers", "module", "baseline")
"""Encoder kinds that read images."""

PRIMARY = "primary"
"""Source id of a dataset's own images; its shift target's source id is the target's id."""


def _as_list(value: object) -> object:
    """Let one file be written without the brackets of a list."""
    return (value,) if isinstance(value, str) else value


def _valid_id(value: str) -> str:
    if not ID_PATTERN.fullmatch(value):
        raise ValueError(ID_RULE)
    return value


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))


CardId = Annotated[str, AfterValidator(_valid_id)]


def _as_range(value: object) -> object:
    """Let a range be written without quotes: YAML reads 0_1 and 0_255 as octal numbers."""
    return {0o1: "0_1", 0o255: "0_255"}.get(value, value) if isinstance(value, int) else value


class _Card(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _GrownCard(_Card):
    """A part of a card that got fields after homes had recorded its content."""

    _LATER: ClassVar[frozenset[str]]
    """Its later fields."""

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is empty of the later fields, so that the content recorded for an id before them stands."""
        return {name: value for name, value in handler(self).items() if name not in self._LATER or value}


class WeightsSource(_GrownCard):
    """Where the weights of an encoder come from; provenance, and the identity of what is measured."""

    hub_id: str | None = None
    """Name of the model in its library or on its hub."""
    revision: str | None = None
    """Full commit of the hub repository, or a tag where a hash says which file it means; None where nobody could look
    it up, so that each home records the commit of its first load."""
    package: str | None = None
    """Package of the Python index that carries ``file``."""
    file: str | None = None
    sha256: str | None = None
    md5: str | None = None
    """Where the publisher names this hash instead."""
    url: str | None = None
    loader: str
    """How the weights become a module, such as ``timm`` or ``checkpoints.retfound``."""
    gated: bool = False
    """Whether the hub gives the files to accounts that accepted terms only."""
    repository: str | None = None
    """Hub repository that holds the files, where ``hub_id`` is the name of a network."""
    network: str | None = None
    """The library's name of the network, where ``hub_id`` is a repository."""
    network_options: dict[str, bool | int | float | str | tuple[int, ...]] = {}
    """Arguments of the network that differ from those of its name."""
    prefix: str | tuple[str, ...] = ""
    """What the names of the network's tensors begin with in the file, or may begin with where releases differ; a file
    without any such tensor is refused."""
    ignored: dict[str, str] = {}
    """Pattern of names -> why these tensors of the file are not the network's; any other left over is an error."""
    allowed_globals: tuple[Literal["argparse.Namespace"], ...] = ()
    """Classes other than tensors that a pickled file may name; none of them runs code."""
    differs_from: str | None = None
    """Hub repository of the stock network that the weights must not equal."""

    _LATER = frozenset(
        ("md5", "repository", "network", "network_options", "prefix", "ignored", "allowed_globals", "differs_from")
    )

    @property
    def is_loadable(self) -> bool:
        """Whether this version has the loader."""
        return self.loader in LOADERS or ":" in self.loader

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of the network's tensors may begin with."""
        return (self.prefix,) if isinstance(self.prefix, str) else self.prefix

    @property
    def has_files(self) -> bool:
        """Whether weights are files that this version finds and reads itself."""
        return self.loader in LOADERS and not self.loader.startswith("baselines.")


class WeightsPlace(_Card):
    """Where a home keeps the weights of one encoder; says nothing about what is measured."""

    named: str | None = None
    """File or folder that ``crsbench.yaml`` names."""
    folder: str
    """Folder for files that were placed by hand."""
    cache: str
    """Folder for what was made of the files: converted tensors, their hashes, the golden vector."""


class Preprocessing(_GrownCard):
    """From the canonical image to the encoder's input; ours for all encoders."""

    input_px: Annotated[int, Field(gt=0)]
    resize_px: Annotated[int, Field(gt=0)]
    resize_mode: Literal["shortest_side", "squash", "pad_square"]
    crop: Literal["center", "none"]
    interpolation: Literal["bilinear", "bicubic", "lanczos"]
    antialias: bool
    then_interpolation: Literal["bilinear", "bicubic"] | None = None
    """A second resize, of floats and without antialiasing, from the square of ``resize_px`` to ``input_px``."""
    channels: Literal["rgb", "gray_to_rgb"] = "rgb"
    value_range: Annotated[Literal["0_1", "0_255"], BeforeValidator(_as_range)] = "0_1"
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    _LATER = frozenset({"then_interpolation"})


class Embedding(_Card):
    """What of the network's output is the image's vector."""

    pooling: Literal["cls", "mean_patches", "map", "gap", "projected"]
    dim: Annotated[int, Field(gt=0)]
    n_blocks: Annotated[int, Field(gt=0)]
    block: Annotated[int, Field(gt=0)] | None = None
    """1-based block (or stage) whose output is the embedding; None is the last."""
    depth_taps: tuple[int, int, int, int] | None = None
    """1-based blocks (or stages) read at 25, 50, 75 and 100 % depth, in this order."""

    @field_validator("depth_taps")
    @classmethod
    def _depth_grows(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (min(value) < 1 or list(value) != sorted(value)):
            raise ValueError("depth_taps are blocks counted from 1, from shallow to deep")
        return value


class SyntheticCell(_Card):
    """Generator settings of one synthetic encoder on one synthetic dataset, and what they plant.

    The settings decide the vectors; the planted values are the expectation of the four axes under these settings,
    computed by simulating the whole cell many times (``benchmarks/plant_synthetic.py``).
    """

    signal: Annotated[float, Field(ge=0.0)]
    """Distance between the class means, in units of the noise."""
    n_nuisance: Annotated[int, Field(ge=0)]
    """Dimensions without information; more of them cost labels."""
    norm_spread: Annotated[float, Field(ge=0.0)]
    """Standard deviation of the log norm of a vector, unrelated to the class; spoils calibration."""
    fragility: Annotated[float, Field(ge=0.0, le=1.0)]
    """Share of the signal lost under the strongest corruption."""
    planted: dict[str, float] | None = None
    """Expected axis values."""
    planted_se: dict[str, float] | None = None
    """Standard deviation of one measured cell around ``planted``."""


Modality = Literal["dermoscopy", "fundus", "xray", "other"]


class EncoderCard(_Card):
    """One frozen encoder."""

    id: CardId
    name: str
    kind: Literal["timm", "open_clip", "transformers", "module", "baseline", "synthetic", "precomputed"]
    role: Literal["candidate", "control"] = "candidate"
    category: Literal["generalist", "broad_medical", "specialty"] | None = None
    family: str | None = None
    pretraining_objective: str | None = None
    description: str = ""
    inferred: bool = False
    """True where the paper does not name this member and we chose it."""
    domains: tuple[Modality, ...] = ()
    """Modalities of datasets that its pretraining was made for; none for a generalist."""
    exposure: dict[str, Exposure] = {}
    """Dataset or shift id -> whether its images were in the pretraining."""
    licence: str | None = None
    non_commercial: bool = False
    """Whether the licence of the weights forbids commercial use."""
    same_encoder_as: tuple[CardId, ...] = ()
    """Encoders that are this one at another input or inside another model, so that the two are not independent."""
    not_applicable: dict[str, str] = {}
    """Dataset id -> why this encoder has no cell there."""
    weights: WeightsSource | None = None
    place: WeightsPlace | None = None
    """Set by the registry of a home; no part of a card's file."""
    preprocessing: Preprocessing | None = None
    embedding: Embedding | None = None
    vectors: dict[str, Annotated[tuple[str, ...], BeforeValidator(_as_list)]] = {}
    """``precomputed``: dataset id -> Parquet file or files of (image_id, condition_id, vector)."""
    cells: dict[str, SyntheticCell] = {}
    """``synthetic``: dataset id -> generator settings."""

    @model_validator(mode="after")
    def _kind_has_its_fields(self) -> EncoderCard:
        if self.kind == "precomputed" and not self.vectors:
            raise ValueError("kind precomputed needs `vectors`: a mapping of dataset id to Parquet files")
        if self.kind == "synthetic" and not self.cells:
            raise ValueError("kind synthetic needs `cells`: a mapping of dataset id to generator settings")
        if self.vectors and self.kind != "precomputed":
            raise ValueError(f"`vectors` belongs to kind precomputed, not to {self.kind}")
        if self.cells and self.kind != "synthetic":
            raise ValueError(f"`cells` belongs to kind synthetic, not to {self.kind}")
        if self.role == "candidate" and self.category is None and self.kind in IMAGE_KINDS:
            raise ValueError("a candidate needs a `category`: generalist, broad_medical or specialty")
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that say which function of an image is measured; an id never changes them."""
        return self.model_dump(mode="json", include={"kind", "role", "weights", "preprocessing", "embedding"})


class SyntheticCohort(_Card):
    """Generator settings of a synthetic dataset without images."""

    n_images: Annotated[int, Field(gt=0)]

    mean_group_size: Annotated[float, Field(ge=1.0)] = 1.0
    prevalence: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...]


class ManifestColumns(_GrownCard):
    """Which columns of a manifest mean what."""

    image_id: str = "image_id"
    class_column: str | None = None
    """Single-label and ordinal: the column that holds one of ``classes``."""
    label_columns: dict[str, str] | None = None
    """Multi-label: class -> column; by default the columns are named as the classes."""
    group: str | None = None
    split: str | None = None
    path: str | None = None
    site: str | None = None
    """The column of institutions, of which ``Source.sites`` says which are read."""

    _LATER = frozenset({"site"})


class Source(_GrownCard):
    """Where the images or labels of a cohort lie, and in which layout."""

    layout: Literal["isic2019", "aptos2019", "chexpert", "mimic_cxr", "manifest", "synthetic"]
    root: str | None = None
    """Folder of the official layout; usually given in ``crsbench.yaml`` instead."""
    manifest: str | None = None
    """CSV or Parquet, one row per image; relative paths start at the card's folder."""
    columns: ManifestColumns = ManifestColumns()
    sites: tuple[str, ...] = ()
    """Values of ``columns.site``: the rows of these institutions are the cohort, others are passed over."""
    synthetic: SyntheticCohort | None = None

    _LATER = frozenset({"sites"})

    @property
    def has_images(self) -> bool:
        """Whether there are image files: in every official layout, and where a manifest has a column of paths."""
        return self.columns.path is not None if self.layout == "manifest" else self.layout != "synthetic"

    @model_validator(mode="after")
    def _layout_has_its_fields(self) -> Source:
        if self.layout == "manifest" and not self.manifest:
            raise ValueError("layout manifest needs `manifest`: a CSV or Parquet file with one row per image")
        if self.layout != "manifest" and (self.manifest or self.sites or self.columns != ManifestColumns()):
            raise ValueError(f"`manifest`, `columns` and `sites` belong to layout manifest, not to {self.layout}")
        if bool(self.sites) != (self.columns.site is not None):
            raise ValueError(
                "`sites` and `columns.site` belong together: the column of institutions, and which of them are read"
            )
        if (self.layout == "synthetic") != (self.synthetic is not None):
            raise ValueError("`synthetic` settings and layout synthetic belong together")
        return self


class ShiftTarget(_Card):
    """A second source of the same labels: another institution, scored but never trained on."""

    id: CardId
    name: str
    source: Source
    agreement: str | None = None
    access: str | None = None
    """How somebody gets the data and accepts the agreement, with the page."""
    licence: str | None = None

    @field_validator("id")
    @classmethod
    def _is_no_source_of_ours(cls, value: str) -> str:
        if value == PRIMARY:
            raise ValueError(f"{PRIMARY!r} names the dataset's own images")
        return value


class DatasetCard(_Card):
    """One dataset, with its shift target where it has one."""

    id: CardId
    name: str
    version: str | None = None
    modality: Modality
    task: Task
    classes: tuple[str, ...]
    """Names of classes or labels; ordinal classes in ascending order."""
    source: Source
    shift: ShiftTarget | None = None
    description: str = ""
    agreement: str | None = None
    """Name of the agreement that must be recorded in ``crsbench.yaml`` before anything is read; a shift target has its
    own, and without it everything else is computed."""
    access: str | None = None
    """How somebody gets the data and accepts the agreement, with the page."""
    licence: str | None = None
    expected_n_images: int | None = None
    expected_n_positive: dict[str, int] | None = None
    is_synthetic: bool = False

    @field_validator("classes")
    @classmethod
    def _classes_are_distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value) or len(value) < 1:
            raise ValueError("classes must be distinct and at least one")
        return value

    @model_validator(mode="after")
    def _task_fits_classes(self) -> DatasetCard:
        if self.task != "multi_label" and len(self.classes) < 2:
            raise ValueError(f"task {self.task} needs at least two classes")
        if self.source.synthetic and len(self.source.synthetic.prevalence) != len(self.classes):
            raise ValueError("synthetic.prevalence needs one number per class")
        unknown = [name for name in self.expected_n_positive or {} if name not in self.classes]
        if unknown:
            raise ValueError(
                f"expected_n_positive names {_listed(unknown)}, no class of the card; expected any of "
                f"{_listed(self.classes)}"
            )
        return self

    @model_validator(mode="after")
    def _sites_are_on_one_side(self) -> DatasetCard:
        if self.shift and self.source.manifest == self.shift.source.manifest:
            both = [site for site in self.source.sites if site in self.shift.source.sites]
            if both:
                raise ValueError(f"sites {_listed(both)} are read by the dataset and by its shift target; expected one")
        return self

    @model_validator(mode="after")
    def _columns_fit_task_and_classes(self) -> DatasetCard:
        faults = [fault for source in self.sources.values() for fault in self._column_faults(source.columns)]
        if faults:
            raise ValueError("; ".join(dict.fromkeys(faults)))
        return self

    def _column_faults(self, columns: ManifestColumns) -> list[str]:
        """Return what is wrong with the columns of labels: what is not used as written would be read otherwise."""
        if self.task != "multi_label":
            words = f"columns.label_columns belongs to task multi_label, not to {self.task}: give columns.class_column"
            return [words] if columns.label_columns is not None else []
        faults = []
        if columns.class_column is not None:
            faults.append("columns.class_column belongs to one class per image, not to task multi_label")
        unknown = [name for name in columns.label_columns or {} if name not in self.classes]
        if unknown:
            faults.append(
                f"columns.label_columns names {_listed(unknown)}, no class of the card; expected any of "
                f"{_listed(self.classes)}"
            )
        classes_of: dict[str, list[str]] = {}
        for name in self.classes:
            classes_of.setdefault((columns.label_columns or {}).get(name, name), []).append(name)
        faults += [
            f"columns.label_columns reads the classes {_listed(names)} from the one column {column!r}; expected a "
            "column each"
            for column, names in classes_of.items()
            if len(names) > 1
        ]
        return faults

    @property
    def sources(self) -> dict[str, Source]:
        """The cohort's own source and that of its shift target, by source id."""
        return {PRIMARY: self.source} | ({self.shift.id: self.shift.source} if self.shift else {})

    @property
    def agreements(self) -> dict[str, str]:
        """The agreement that a source needs, by source id; absent where it needs none."""
        named = {PRIMARY: self.agreement} | ({self.shift.id: self.shift.agreement} if self.shift else {})
        return {source_id: agreement for source_id, agreement in named.items() if agreement}

    def open_sources(self, agreements: Collection[str]) -> dict[str, Source]:
        """Return the sources that may be read, by source id: those whose agreement is recorded, or that need none.

        Args:
            agreements: names of the agreements that the home's settings record.
        """
        closed = {source_id for source_id, agreement in self.agreements.items() if agreement not in agreements}
        return {source_id: source for source_id, source in self.sources.items() if source_id not in closed}

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that say which question is asked of which cohort; an id never changes them."""
        shift = self.shift.id if self.shift else None
        return {
            **self.model_dump(mode="json", include={"task", "classes", "modality", "version"}),
            "layout": self.source.layout,
            "shift": shift,
        }
