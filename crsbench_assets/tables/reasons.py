"""Reason codes: why a value is NULL or a cell has no result.

What lives here: the closed list of codes and their meaning for a reader. What stays out: the code that decides.
Source: protocol page, sections 2 to 7.
"""

from __future__ import annotations

REASONS: dict[str, str] = {
    # cells
    "excluded_by_card": "the encoder's card says that it has no cell on this dataset",
    "no_vectors": "the encoder's card names no vectors for this dataset or condition",
    "no_images": "the dataset has no images, and the encoder reads images; for a record: no test image",
    "no_root": "crsbench.yaml names no folder for this dataset",
    "not_synthetic": "a synthetic encoder has settings for synthetic datasets only",
    "not_available": "this version cannot read this layout or load this kind of encoder yet",
    "incomplete_support": "the encoder has no usable vector for at least one image of the support",
    "not_converged": "a probe did not reach the certified gap",
    "died": "the process that computed it is gone",
    "error": "the stage ended with an error that is no property of the data",
    # vectors
    "missing": "the encoder has no vector for the image",
    "not_finite": "the vector holds NaN or an infinite value",
    "wrong_width": "the vector is not as wide as most vectors of its encoder",
    # labels and metrics
    "no_positive": "no positive image among the test images",
    "no_negative": "no negative image among the test images",
    "no_labels": "no known label among the images",
    "one_class_train": "the training subset holds one value of this label",
    "class_absent_train": "the training split holds no image of this class",
    "infeasible_fraction": "the fraction of this dataset has fewer images than classes",
    "unstable": "fewer than 95 % of the replicates are defined",
    "one_group": "all test images are of one group, so nothing can be redrawn",
    "no_access": "the dataset needs an agreement that crsbench.yaml does not record",
    # post-hoc calibration
    "no_gain": "the loss on held-out validation images does not fall by one standard error, so the identity stands",
    "at_bound": "the best parameters lie at a bound, so the data do not decide and the identity stands",
    "one_class_validation": "the validation images hold one class or value of the label, so the identity stands",
    "few_validation_images": "the validation images do not fill two folds with two classes, so the identity stands",
    # aggregates and scores
    "missing_seed": "not every seed has a value",
    "undefined_term": "a term of the ratio or mean is undefined",
    "near_chance": "the discrimination is not above chance, so a chance-corrected ratio is undefined",
    "incomplete": "an applicable cell has no result, or lacks an axis: `cell_axes.reason` says why",
    "no_anchor": "the panel has no anchor for this dataset",
    "degenerate_axis": "all members agree on this axis, so it is set to 0.5",
    "no_panel": "no complete candidate forms a panel",
    "no_replicates": "a cell has no replicates of its axes, or fewer than 95 % of them are defined",
    "one_seed": "the protocol has one seed, so no seed can be redrawn",
    "panel_mismatch": "the panel was frozen under other rules or on another test set",
    # analyses
    "too_few_units": "fewer than three units for a correlation, four for its interval, or two in a group; or no more "
    "encoders than the top 3 or 5 holds",
    "no_spread": "all units agree, so the statistic is undefined",
    "perfect_correlation": "the correlation is -1 or 1, where its interval would have no width",
    "empty_group": "the panel has no encoder or cell in one of the two groups that are compared",
    "no_parent": "the panel has no generalist of the encoder's family",
    "no_common_dataset": "no dataset has a cell of every member",
    "no_other_dataset": "no member with a cell on this dataset has one on another",
    "other_robustness": "this variant of robustness has the shift term and the panel's has not",
    "not_enumerated": "what is redrawn is not seeds alone, or the ordered draws of seeds are too many to be listed",
    "no_tier": "no set of leading encoders smaller than all is the same under every draw of the seeds",
    # splits
    "group_in_declared_test": "a group of the pool also has images in the declared test split",
    "excluded": "quarantined, or outside a cap",
    # quarantine
    "blank_class": "the row of the manifest names no class",
    "missing_file": "there is no file at the image's path",
    "outside_root": "the image's path leaves the root of its cohort",
    "unreadable": "the file cannot be decoded to its last row",
    "too_small": "the shortest side is below 16 px",
    "constant": "all pixels are equal",
    "in_own_dataset": "an image of the shift target that the dataset itself holds, too",
    # flags of records
    "no_effect": "the corruption left more than 1 % of the test images as they were",
}
