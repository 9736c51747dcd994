"""Fixed points and curves of roots of any map, without physics."""
