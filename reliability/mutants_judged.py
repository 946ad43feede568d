"""Mutants that no test notices and none has to: each with the reason, judged by reading."""

HARMLESS: dict[str, str] = {}
