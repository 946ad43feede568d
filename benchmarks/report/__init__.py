"""Tables, charts and targets made from the samples."""
