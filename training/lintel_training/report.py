# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine and the software that a result states."""

import os
import platform

import torch

from . import __version__


def _cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def hardware(device):
    facts = {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_memory_peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return facts


def versions():
    return {"lintel_training": __version__, "python": platform.python_version(),
            "torch": torch.__version__, "cuda": torch.version.cuda}
