# SPDX-License-Identifier: Apache-2.0
"""Feature maps of linear attention: phi, a function of one row; its dot products stand for a kernel.

`elu_plus_one` is Katharopoulos et al. 2020, `relu` and `squared_relu` Performer's generalized
attention (Choromanski et al. 2021), `dpfp` Schlag et al. 2021, `taylor1` Li et al. 2020, `taylor2`
Arora et al. 2024 (Based), `fourier` Peng et al. 2021 as fast-transformers has it, `exp` the causal form
of efficient attention in performer-pytorch, and `favor` Performer's positive features (FAVOR+).
"""

import math

import torch
import torch.nn.functional as F

# Maps of which features() gives the logarithm: their values leave the range of float32, their
# quotients do not (log_space.py).
LOG_SPACE = ("exp", "favor")
# Maps whose feature_scale is D^(-1/4) where it is null, so that q.k is divided by sqrt(D); else 1.
_SOFTMAX_LIKE = ("taylor2", "fourier", "favor")
# Maps whose denominator is bounded away from 0 without eps.
NEEDS_NO_EPS = ("taylor2", "exp", "favor")
# Keys of the map, beside eps, and which maps take them.
_TAKEN_BY = {
    "features": ("relu", "squared_relu", "fourier", "favor"),
    "feature_scale": ("relu", "squared_relu", "taylor2", "fourier", "exp", "favor"),
    "feature_eps": ("relu", "squared_relu"),
    "nu": ("dpfp",),
    "smoothing": ("fourier",),
    "hyperbolic": ("favor",),
}
_REQUIRED_BY = {"features": ("fourier", "favor"), "nu": ("dpfp",)}
MAX_FEATURES = 2**16  # C
MAX_STATE = 2**28  # H * C * (D + 2)


def features(attention, x, omega=None):
    """phi(x), of a map of LOG_SPACE log phi(x): [..., D] -> float32 [..., C].

    attention: of config.py. omega: [D, features], where attention.features is a number. In float32
    also under autocast, since features span many orders of magnitude.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        name, scale = attention.feature_map, attention.feature_scale
        if scale is None:
            scale = x.shape[-1] ** -0.25 if name in _SOFTMAX_LIKE else 1.0
        if scale != 1.0:
            x = x * scale
        return _MAPS[name](x, x if omega is None else torch.matmul(x, omega), attention)


# Each: x [..., D] is scaled, u [..., features] its projection or x itself.


def elu_plus_one(x):
    """elu(x) + 1, which is exp(x) where x < 0, and computed so: elu(x) is near -1 there, and adding 1
    leaves noise of 6e-8 in what may be 1e-9. Trained features are that small, and it cost 0.006
    bits/dim on some images.
    """
    above = F.relu(x)
    return torch.exp(x - above) + above  # a where() would cost a CPU a tenth of the training time


def _dpfp(x, nu):
    y = torch.cat([F.relu(x), F.relu(-x)], -1)  # [..., 2D]
    return torch.cat([y * y.roll(j, -1) for j in range(1, nu + 1)], -1)


def _taylor1(x):
    unit = F.normalize(x, dim=-1, eps=1e-12)
    return torch.cat([torch.ones_like(x[..., :1]), unit], -1)


def _taylor2(x):
    products = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) / math.sqrt(2)
    return torch.cat([torch.ones_like(x[..., :1]), x, products], -1)


def _fourier(u, smoothing):
    waves = torch.cat([u.cos(), u.sin()], -1) / math.sqrt(u.shape[-1])
    if smoothing == 0:
        return waves
    return torch.cat([waves, torch.full_like(u[..., :1], smoothing)], -1)


def _log_favor(x, u, hyperbolic):
    if hyperbolic:
        u = torch.cat([u, -u], -1)
    return u - (x * x).sum(-1, keepdim=True) / 2 - math.log(u.shape[-1]) / 2


_MAPS = {
    "elu_plus_one": lambda x, u, a: elu_plus_one(x),
    "relu": lambda x, u, a: F.relu(u) + a.feature_eps,
    "squared_relu": lambda x, u, a: F.relu(u).square() + a.feature_eps,
    "dpfp": lambda x, u, a: _dpfp(x, a.nu),
    "taylor1": lambda x, u, a: _taylor1(x),
    "taylor2": lambda x, u, a: _taylor2(x),
    "fourier": lambda x, u, a: _fourier(u, a.smoothing),
    "exp": lambda x, u, a: x,
    "favor": lambda x, u, a: _log_favor(x, u, a.hyperbolic),
}


def count(attention, d):
    """C, the number of features of a head of width d."""
    n = attention.features or d
    return {"dpfp": 2 * d * (attention.nu or 0), "taylor1": d + 1, "taylor2": 1 + d + d * d,
            "fourier": 2 * n + (attention.smoothing > 0),
            "favor": 2 * n if attention.hyperbolic else n}.get(attention.feature_map, n)


def unused_keys(name):
    """Keys of linear attention that a feature map does not take."""
    return [key for key, maps in _TAKEN_BY.items() if name not in maps]


def contradiction(attention, keys, config):
    """The contradiction in the keys of linear attention; None where there is none.

    keys: as kinds.json declares them. config: of the model.
    """
    name = attention.feature_map
    for key in keys:
        value = getattr(attention, key["name"])
        if key["name"] in unused_keys(name) and value != key.get("initial"):
            return f"{key['name']} is {value!r}, which feature_map {name} does not take"
    for key, maps in _REQUIRED_BY.items():
        if name in maps and getattr(attention, key) is None:
            return f"{key} is missing, feature_map {name} needs it"
    if attention.eps == 0 and name not in NEEDS_NO_EPS:
        return f"eps is 0, which is for feature_map {', '.join(NEEDS_NO_EPS)} only"
    c = count(attention, config.d_head)
    if c > MAX_FEATURES or config.n_heads * c * (config.d_head + 2) > MAX_STATE:
        return (f"features: feature_map {name} has {c} of them, must be at most {MAX_FEATURES}, and "
                f"n_heads * features * (d_head + 2) at most {MAX_STATE}")
    return None


@torch.no_grad()
def draw_orthogonal(omega, normal):
    """Fills omega [D, features]: its columns, D at a time, are orthogonal, with lengths of Gaussian
    vectors (Choromanski et al. 2021, section 2.4). normal(tensor, std) draws.
    """
    d, n = omega.shape
    gauss = torch.empty(-(-n // d), d, d, dtype=torch.float64)
    normal(gauss, 1.0)
    q, r = torch.linalg.qr(gauss)  # Gram-Schmidt of the columns, but for signs
    q = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)
    normal(gauss, 1.0)
    columns = q * gauss.norm(dim=-2, keepdim=True)
    omega.copy_(columns.transpose(0, 1).reshape(d, -1)[:, :n])
