"""Where the map stands still: methods, one point, branches."""
