# SPDX-License-Identifier: Apache-2.0
"""Random feature maps of idiap/fast-transformers (`fast_transformers.feature_maps`): their keys here.

All of them keep one buffer, `omega` [D, columns], whose name and shape are those of the format. What was
made of it, the temperature and the number of features are in no tensor:

    GeneralizedRandomFeatures(n_dims=n, softmax_temp=T)   relu(omega^T (sqrt(T) x)), n columns, T 1 by default
    RandomFourierFeatures(n, T)                           sqrt(2/n) [cos u, sin u], n div 2 columns
    SmoothedRandomFourierFeatures(n, T, smoothing=s)      the same with n - 1 in place of n, then s
    Favor(n, T)                                           exp([u, -u] - |sqrt(T) x|^2 / 2) / sqrt(n), n div 2 columns

with u = omega^T (sqrt(T) x); T is 1/sqrt(D) by default in the last three. A fast-transformers model draws a new
omega at every call while it trains, and while it is evaluated unless deterministic_eval: the one in the
checkpoint is that of the last call.
"""

import math

OMEGA = "feature_map.omega"
# Their classes, by the names of the flag.
MAPS = ("favor", "generalized", "fourier", "smoothed-fourier")


class NotTold(ValueError):
    """A key that no tensor shows is missing, or does not fit the tensors."""


def keys_of(omega, name, softmax_temp=None, n_dims=None, smoothing=None, eps=1e-6):
    """Keys of `linear` for the map `name`; a factor of all features cancels but for eps, which is eps times its
    square here.
    """
    if name is None:
        raise NotTold(f"--feature-map is needed: {OMEGA} does not tell which of {', '.join(MAPS)} it is of")
    columns = omega.shape[1]
    if smoothing is not None and name != "smoothed-fourier":
        raise NotTold("--smoothing is of smoothed-fourier alone")
    given, n_dims = n_dims, n_dims or _least(name, columns)
    used = n_dims - 1 if name == "smoothed-fourier" else n_dims  # features of omega
    if (used if name == "generalized" else used // 2) != columns:
        raise NotTold(f"--n-dims {given} does not make the {columns} columns of {OMEGA}")
    keys = {"features": columns, "eps": eps,
            "feature_scale": None if softmax_temp is None else math.sqrt(softmax_temp)}
    if name == "generalized":
        return {"feature_map": "relu", **keys, "feature_eps": 0.0}
    # Theirs is the square root of `used`, ours of what the columns make: they differ for odd numbers.
    factor = used / (2 * columns)
    if name == "favor":
        return {"feature_map": "favor", **keys, "hyperbolic": True, "eps": eps * factor}
    keys["eps"] = eps * factor
    if name == "smoothed-fourier":
        if smoothing is None:
            smoothing = 1.0  # the class's default
        keys["smoothing"] = smoothing * math.sqrt(factor)
    return {"feature_map": "fourier", **keys}


def _least(name, columns):
    """The least n_dims that makes so many columns."""
    return {"generalized": columns, "smoothed-fourier": 2 * columns + 1}.get(name, 2 * columns)
