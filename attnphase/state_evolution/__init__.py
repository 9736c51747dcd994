"""The map from overlaps to overlaps, equations (7)-(8), and what is measured at a point."""
