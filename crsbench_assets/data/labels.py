"""Label policies: what an uncertain or blank label becomes.

What lives here: the three policies of multi-label cohorts. What stays out: reading labels (``sources``).
Source: Irvin et al. 2019 (arXiv 1901.07031), policies U-Zeros, U-Ignore, U-Ones; protocol page, section 4. A blank
means "not mentioned" and counts as negative under every policy: `No Finding` has no explicit negatives at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crsbench_assets.config.settings import LabelPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNKNOWN = -1
"""A label that is masked in loss and metrics; NULL in tables."""

UNCERTAIN = -1.0
"""How CheXpert and MIMIC-CXR write an uncertain label."""


def apply_policy(raw: NDArray[np.float64], policy: LabelPolicy) -> NDArray[np.int8]:
    """Return labels under a policy.

    Args:
        raw: (n, k): 1 positive, 0 negative, -1 uncertain, NaN blank.
        policy: ``u_zeros`` makes uncertain labels 0, ``u_ones`` 1, ``u_ignore`` unknown.

    Returns:
        int8 (n, k): 1, 0 or -1 (unknown).
    """
    import numpy as np

    uncertain = {"u_zeros": 0, "u_ones": 1, "u_ignore": UNKNOWN}[policy]
    filled = np.where(np.isnan(raw), 0.0, raw)
    return np.where(filled == UNCERTAIN, uncertain, filled).astype(np.int8)
