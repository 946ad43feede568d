"""The build backend that pyproject.toml names (PEP 517): setuptools' backend, with a TensorFlow to compile against.

An isolated build does not see the packages of the environment that it builds for, but it can find their folder. If
TensorFlow is not there, pip gets one for the build, and then installs it too.
"""

from collections.abc import Mapping
from typing import Any

from setuptools.build_meta import build_editable as build_editable
from setuptools.build_meta import build_sdist as build_sdist
from setuptools.build_meta import build_wheel as build_wheel
from setuptools.build_meta import prepare_metadata_for_build_editable as prepare_metadata_for_build_editable
from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel

from .machine import check_machine
from .tensorflow import DEFAULT_REQUIREMENT, find_tensorflow


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns nothing, because a source distribution is not compiled."""
    return []


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the TensorFlow that `pip install -C tensorflow=REQUIREMENT` names, or a default if there is none yet."""
    check_machine()
    wanted = (config_settings or {}).get("tensorflow")
    if wanted:
        return [wanted]
    return [] if find_tensorflow() else [DEFAULT_REQUIREMENT]


get_requires_for_build_editable = get_requires_for_build_wheel
