"""The version of the project, as in CMakeLists.txt."""

__version__ = "0.1.0"
