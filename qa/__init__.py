"""Programs that try to break the library, and the page of their findings: docs/reliability.md."""
