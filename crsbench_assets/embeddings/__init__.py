"""From images to vectors: which vectors a cell needs, and what is missing."""
