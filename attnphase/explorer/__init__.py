"""A dataset as a page that moves: one file of HTML, without a server or a network."""
