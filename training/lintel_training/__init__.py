# SPDX-License-Identifier: Apache-2.0
"""Training of the models that Lintel serves (Katharopoulos et al., 2020)."""

__version__ = "1.0.0"
