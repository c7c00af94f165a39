# SPDX-License-Identifier: Apache-2.0
"""Makes lintel_training importable from the tests, wherever they are started."""

import os
import sys

import torch

TRAINING = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REPOSITORY = os.path.dirname(TRAINING)
sys.path.insert(0, TRAINING)

torch.set_num_threads(1)  # the tensors are tiny, and results must not depend on the machine
