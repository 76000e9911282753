"""The version of the package: the build reads it from here, so wheel and import agree."""

__version__ = "0.1.0"
