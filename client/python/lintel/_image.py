# SPDX-License-Identifier: Apache-2.0
"""Images with hidden pixels, and the requests that complete them."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from lintel.results import ImageShape, Sample

if TYPE_CHECKING:
    import numpy.typing as npt


class Completion:
    """An image as the model takes it: tokens in raster order, those up to the first hidden one as
    prompt, the known ones after it as spans that are fed in place of samples. What follows the last
    hidden one changes nothing, but for particles, and is not sent.
    """

    def __init__(self, image: npt.NDArray[np.uint8], mask: npt.NDArray[np.bool_]) -> None:
        image, mask = np.asarray(image), np.asarray(mask)
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise TypeError(
                "an image is a uint8 array [height, width] or [height, width, channels], "
                f"not {image.dtype} {list(image.shape)}"
            )
        if mask.dtype != np.bool_:
            raise TypeError(f"a mask is an array of bool, true where hidden, not {mask.dtype}")
        if mask.ndim == 2 and image.ndim == 3:
            mask = np.repeat(mask[:, :, np.newaxis], image.shape[2], axis=2)
        if mask.shape != image.shape:
            raise ValueError(f"the mask is {list(mask.shape)}, the image {list(image.shape)}")
        self._shape = image.shape
        self._tokens = image.reshape(-1).copy()
        self._hidden = mask.reshape(-1)
        self._positions = np.flatnonzero(self._hidden)

    def check_fits(self, name: str, served: Optional[ImageShape]) -> None:
        """ValueError for an image that the model does not draw; warns of one that looks inverted."""
        if served is None:
            raise ValueError(f"the model{name and ' ' + name} draws no images")
        drawn = [served.height, served.width, served.channels]
        if [*self._shape, 1][:3] != drawn:
            wanted = drawn if served.channels > 1 else drawn[:2]
            hint = "" if served.channels > 1 else "; `lintel complete --fit` fits pictures of digits"
            raise ValueError(
                f"the image is {list(self._shape)}, the model{name and ' ' + name} draws {wanted}{hint}"
            )
        if served.channels == 1 and self._has_light_border():
            warnings.warn(
                "the image's border is light: a model that draws light on dark, as those of MNIST do, "
                "takes it inverted (255 - image)",
                stacklevel=_callers_level(),
            )

    def _has_light_border(self) -> bool:
        """True if the known pixels of the border are light."""
        border = np.ones(self._shape[:2], dtype=bool)
        border[1:-1, 1:-1] = False
        known = self._tokens[border.reshape(-1) & ~self._hidden]
        return known.size > 0 and bool(np.median(known) > 127)

    @property
    def nothing_hidden(self) -> bool:
        return self._positions.size == 0

    @property
    def first_is_hidden(self) -> bool:
        return bool(self._hidden[0])

    def request(self, start_token: Optional[int], whole: bool = False) -> dict[str, Any]:
        """The arguments of generate(). A hidden first token becomes `start_token`: a model has no
        distribution over it. whole: with what follows the last hidden token, for those who weigh it.
        REQUIRES: something is hidden.
        """
        first, last = int(self._positions[0]), int(self._positions[-1])
        if whole:
            last = self._tokens.size - 1
        if first == 0:
            if start_token is None:
                raise ValueError("the first token is hidden, and the model has no start token")
            self._tokens[0] = start_token
            first = int(self._positions[1]) if self._positions.size > 1 else 1
        known = ~self._hidden[first : last + 1]
        edges = np.flatnonzero(np.diff(known, prepend=False, append=False)) + first
        spans = zip(edges[::2].tolist(), edges[1::2].tolist())
        return {
            "prompt": self._tokens[np.newaxis, :first],
            "max_new_tokens": max(last + 1 - first, 0),
            "given": [(begin, self._tokens[np.newaxis, begin:end]) for begin, end in spans],
        }

    def filled(self, sample: Optional[Sample] = None) -> npt.NDArray[np.uint8]:
        """The image with the sample's tokens where it was hidden."""
        tokens = self._tokens.copy()
        if sample is not None:
            end = sample.first_position + sample.tokens.size
            if end <= self._positions[-1]:
                reason = sample.result.finish_reason.name
                raise RuntimeError(f"the server ended the image after {end} tokens: {reason}")
            if np.any(sample.tokens > 255):
                raise RuntimeError(f"the server sent {sample.tokens.max()}, which is no pixel")
            tokens[sample.first_position : end] = sample.tokens
        return tokens.reshape(self._shape)

    def result(
        self, samples: Optional[list[Sample]], num_samples: Optional[int]
    ) -> npt.NDArray[np.uint8]:
        """One image, or [num_samples, ...] of them where a number was asked for."""
        if num_samples is None:
            return self.filled(samples[0] if samples else None)
        if samples is None:
            return np.stack([self.filled()] * num_samples)
        return np.stack([self.filled(sample) for sample in samples])


def _callers_level() -> int:
    """The level of the frame that called the package, as warnings.warn() counts from who calls this."""
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith("lintel."):
        level += 1
    return level
