"""One row of the weights beyond the ridge, equations (100)-(106)."""
