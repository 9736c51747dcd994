"""Models: scores, losses, regularisers, and the formulas that users write."""
