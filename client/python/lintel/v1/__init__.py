# SPDX-License-Identifier: Apache-2.0
"""The messages of proto/lintel/v1, written by protoc when the package is built (generate.py)."""
