"""The vocabulary of the package.

What lives here: the reasons that a record may give and the id of the definition of ECE that stands in every record.
What stays out: the arithmetic (``ranking``, ``calibration``, ``ordinal``, ``compute``), the kinds of task
(``config.cards``) and the list of the metrics with range and direction (``tables.results``).
Source: protocol page, section 5; the papers behind each definition are cited where it is computed.
"""

from __future__ import annotations

from typing import Literal

UndefinedReason = Literal[
    "no_images", "class_absent_train", "one_class_train", "no_labels", "no_positive", "no_negative"
]
"""Why a value of a record or of one of its labels is undefined."""

ECE_DEFINITION = "equal_width_right_closed-1"
"""Equal-width bins closed on the right, zero in the first; top-label confidence for single-label and ordinal
tasks, macro mean of the positive-class error for multi-label tasks. The number of bins is a field of the
protocol."""
