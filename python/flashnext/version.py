"""The version of the package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("flashnext")
except PackageNotFoundError:  # a source tree that is not installed
    VERSION = "0+unknown"
