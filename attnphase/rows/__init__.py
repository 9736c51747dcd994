"""One row of the weights: the kinds of regularisers, a row's minimisers, and means over its noise, (100)-(106)."""
