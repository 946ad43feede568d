"""Finds a headless Chromium."""

import os
import shutil

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--disable-gpu", "--hide-scrollbars", *["--no-sandbox"] * (os.geteuid() == 0))  # Not for root.


def find_chromium():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)
