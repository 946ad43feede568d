"""Random input, drawn and shrunk by hypothesis: `python -m qa.fuzz`."""
