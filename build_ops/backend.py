"""The build backend that pyproject.toml names (PEP 517): setuptools', which compiles against a TensorFlow.

An isolated build does not see the packages of the environment that it builds for, but can find their folder. Only if
TensorFlow is not there does the build get one of its own, which pip then also installs.
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
    """Nothing: it compiles nothing."""
    return []


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The TensorFlow that `pip install -C tensorflow=REQUIREMENT` names, or one if the environment has none."""
    check_machine()
    wanted = (config_settings or {}).get("tensorflow")
    if wanted:
        return [wanted]
    return [] if find_tensorflow() else [DEFAULT_REQUIREMENT]


get_requires_for_build_editable = get_requires_for_build_wheel
