# SPDX-License-Identifier: Apache-2.0
"""The version of the project, as in CMakeLists.txt."""

__version__ = "0.3.0"
