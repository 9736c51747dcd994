"""A dataset as an interactive page: one file of HTML, without a server or a network."""
