"""The version of the project, as in CMakeLists.txt."""

__version__ = "0.2.0"
