"""Programs that look for what breaks the library, and the page of what they found: docs/reliability.md."""
