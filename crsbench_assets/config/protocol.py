"""The protocol: every choice that decides a number.

What lives here: the typed form of ``catalog/protocols/*.yaml``, its content hash, and the conditions it spans.
What stays out: the arithmetic that follows from it (``metrics``, ``aggregates``, ``scores``).
Source: protocol page; fields marked "ours" close what the paper leaves open.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.ids import CLEAN, ID_PATTERN, ID_RULE, corruption_condition, shift_condition

AXES = ("discrimination", "calibration", "label_efficiency", "robustness")
"""The four axes, in the order of every profile."""

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _distinct(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``value`` when its items can be keys of rows: at least one, and none twice."""
    if not value or len(set(value)) != len(value):
        raise ValueError("at least one item is expected, and none twice")
    return value


class SplitRules(_Section):
    """How images are set apart (protocol section 2)."""

    test_fraction: Fraction
    validation_fraction: Fraction


class CorruptionRules(_Section):
    """The corruption grid (protocol section 3)."""

    kinds: tuple[str, ...]
    severities: tuple[int, ...]

    @field_validator("kinds", "severities")
    @classmethod
    def _are_distinct(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return _distinct(value)


class ProbeRules(_Section):
    """The probe and when it counts as solved (protocol section 4)."""

    estimator: Literal["logistic"]
    c: Annotated[float, Field(gt=0.0)]
    relative_gap: Annotated[float, Field(gt=0.0)]
    sd_floor: Annotated[float, Field(ge=0.0)]


class MetricRules(_Section):
    """Definitions of the metrics (protocol section 5)."""

    ece_bins: Annotated[int, Field(ge=2)]
    test_replicates: Annotated[int, Field(ge=100)]
    near_chance_auroc: float


class AxisRules(_Section):
    """Definitions of the axes (protocol section 6)."""

    shift_weight: Annotated[float, Field(ge=0.0, le=1.0)]


class ScoreRules(_Section):
    """Weights of the score (protocol section 7)."""

    dominance_weight: float
    balance_weight: float
    worst_weight: float
    axis_weights: dict[str, Annotated[float, Field(ge=0.0)]]
    degenerate_range: float

    @model_validator(mode="after")
    def _weights_are_shares(self) -> ScoreRules:
        if sorted(self.axis_weights) != sorted(AXES):
            raise ValueError(f"axis_weights needs exactly the axes {', '.join(AXES)}")
        components = (self.dominance_weight, self.balance_weight, self.worst_weight)
        for name, weights in (("axis_weights", self.axis_weights.values()), ("component weights", components)):
            if min(weights) < 0 or abs(sum(weights) - 1.0) > 1e-9:
                raise ValueError(f"{name} must be at least 0 and sum to 1, found {sum(weights):g}")
        return self


class Protocol(_Section):
    """One benchmark protocol; equal content gives an equal :attr:`hash`, whatever the file looks like."""

    id: str
    description: str = ""
    seeds: tuple[int, ...]
    label_fractions: tuple[Fraction, ...]
    splits: SplitRules
    corruptions: CorruptionRules
    probe: ProbeRules
    metrics: MetricRules
    axes: AxisRules
    scores: ScoreRules
    ours: tuple[str, ...] = ()
    """Dotted names of the fields on which the paper is silent."""

    @field_validator("id")
    @classmethod
    def _id_is_valid(cls, value: str) -> str:
        if not ID_PATTERN.fullmatch(value):
            raise ValueError(ID_RULE)
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_are_distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return _distinct(value)

    @field_validator("label_fractions")
    @classmethod
    def _ends_at_all_labels(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)) or not value or value[-1] != 1.0:
            raise ValueError("label_fractions must ascend, without repeats, and end at 1.0")
        return value

    @cached_property
    def hash(self) -> str:
        """Hash of everything that decides a number: all fields but ``description`` and ``ours``."""
        return content_hash(self.model_dump(mode="json", exclude={"description", "ours"}))

    @property
    def label(self) -> str:
        """Return id and first 12 digits of the hash, such as ``crs-1@0123456789ab``: what stands in every row."""
        return f"{self.id}@{self.hash[:12]}"

    @property
    def corruption_conditions(self) -> tuple[str, ...]:
        """Ids of the corrupted conditions, kind by kind, mild to strong."""
        return tuple(
            corruption_condition(kind, severity)
            for kind in self.corruptions.kinds
            for severity in self.corruptions.severities
        )

    def conditions(self, shift_id: str | None) -> tuple[str, ...]:
        """Return all condition ids of a dataset, with its shift target where it has one."""
        shift = (shift_condition(shift_id),) if shift_id else ()
        return (CLEAN, *self.corruption_conditions, *shift)

    def field(self, dotted: str) -> Any:
        """Return the JSON value of a dotted field name, such as ``probe.c``."""
        value: Any = self.model_dump(mode="json")
        for part in dotted.split("."):
            value = value[part]
        return value
