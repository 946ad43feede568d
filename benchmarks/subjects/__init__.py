"""The measurements, by theme."""
