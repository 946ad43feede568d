"""Programs that try to break the library. docs/reliability.md shows their findings."""
