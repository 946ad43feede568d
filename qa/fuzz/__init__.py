"""Random input, drawn and made smaller by hypothesis: `python -m qa.fuzz`."""
