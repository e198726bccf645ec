"""The scattering transform of images: moduli of Morlet wavelet coefficients, averaged, up to the second order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from gnomon.errors import SettingError
from gnomon.features.feature_map import FeatureMap, as_float, unit_norm
from gnomon.features.images import image_batch
from gnomon.models.networks import any_shape
from gnomon.validate import whole

Array = NDArray[np.float64]

CHUNK = 32
"""Images that are transformed at a time: their coefficients stay in the processor's cache."""

MATRIX_SIDE = 24
"""Up to this side, an inverse Fourier transform is faster as two matrix products than as an FFT."""

DENSE_ENTRIES = 2**18
"""Up to this size, a low-pass filter is one matrix product; otherwise one along each axis."""

PI_OF_THE_FILTERS = 3.1415
"""The constant in the norm of the filters of ScatNet and Kymatio, whose coefficients we reproduce."""


class Scattering(FeatureMap):
    """Scattering coefficients of orders 0 to 2, normalised in groups of channels and then to norm one.

    The wavelets and the order of the channels are those of ScatNet and Kymatio ("Invariant Scattering Convolution
    Networks", Bruna and Mallat, 2013): 81 channels for each input channel with J = 2 and L = 8, and the side of the
    output is about the side of the image over 2^J. The filters are constants; no record enters them.

    Args:
        shape: the shape of one image, (channels, height, width). Colour images are transformed channel by channel.
        J: the number of scales; the average is over about 2^J pixels.
        L: the number of orientations.
        normalise: "group" for group normalisation with three channels in a group (27 groups for each input channel
            with J = 2, L = 8) and then unit norm, as in "Differentially Private Learning Needs Better Features"
            (Tramèr and Boneh, 2021); "none" for the coefficients themselves.
        resize: the length to which the shorter side of the images is scaled first, by bilinear interpolation; None to
            take them as they are. Images of 8x8 pixels have hardly any scale left to average over.

    Raises:
        SettingError: the shape is not that of an image with sides above 2^J.

    >>> scattering = Scattering((1, 28, 28))
    >>> images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    >>> features = scattering(images)
    >>> features.shape, bool(features.norm(dim=1).allclose(torch.ones(2)))
    (torch.Size([2, 3969]), True)
    >>> scattering.coefficients(images).shape
    torch.Size([2, 81, 7, 7])
    >>> scattering.description
    'Feature map: scattering of 1x28x28 images, J = 2, L = 8, group norm, unit norm (no statistics of any records).'
    """

    def __init__(
        self, shape: Sequence[int], J: int = 2, L: int = 8, normalise: str = "group", resize: int | None = None
    ) -> None:
        J, L = whole("J", J), whole("L", L)
        shape = given = any_shape(shape)
        if resize is not None and len(shape) == 3:
            factor = whole("resize", resize) / min(shape[1:])
            shape = (shape[0], *(round(side * factor) for side in shape[1:]))
        if len(shape) != 3 or min(shape[1:]) <= 2**J:
            raise SettingError("shape", shape, f"(channels, height, width) with sides above 2^J = {2**J}")
        if normalise not in ("group", "none"):
            raise SettingError("normalise", normalise, "'group' or 'none'")
        paths = 1 + J * L + L * L * J * (J - 1) // 2
        padded = [((side + 2**J) // 2**J + 1) * 2**J for side in shape[1:]]
        self.sides = [side // 2**J - 2 for side in padded]
        norm = ", group norm, unit norm" if normalise == "group" else ""
        resized = "" if resize is None else f" resized to {'x'.join(map(str, shape[1:]))}"
        super().__init__(
            f"scattering of {'x'.join(map(str, given))} images{resized}, J = {J}, L = {L}{norm}",
            shape[0] * paths * self.sides[0] * self.sides[1],
            settings={"shape": list(given), "J": J, "L": L, "normalise": normalise, "resize": resize},
        )
        self.given = given
        self.shape, self.J, self.L, self.paths, self.normalise = shape, J, L, paths, normalise
        self.groups = shape[0] * paths // next(size for size in (*range(3, paths), paths) if paths % size == 0)
        margins = [side - size for side, size in zip(padded, shape[1:], strict=True)]
        self.margins = [margins[1] // 2, (margins[1] + 1) // 2, margins[0] // 2, (margins[0] + 1) // 2]
        for scale in range(J):
            wavelets = np.stack([_wavelet(padded, scale, angle, L) for angle in range(L)])  # (L, height, width)
            for level in range(min(scale, J - 2) + 1 if J > 1 else 1):
                folds = _folds(_periodised(wavelets, level), 2 ** (scale - level))
                self._constant(f"wavelets_{scale}_{level}", folds)
            if max(padded) >> scale <= MATRIX_SIDE:
                for axis, side in enumerate(padded):
                    self._constant(f"inverse_{scale}_{axis}", _inverse_matrix(side >> scale, left=axis == 0))
        for level in range(J):
            rows, columns = (_low_pass(side, J, level) for side in padded)
            if rows.size * columns.size <= DENSE_ENTRIES:
                self._constant(f"low_pass_{level}", np.kron(rows, columns).T.astype(np.float64))
            else:
                self._constant(f"low_pass_rows_{level}", rows)
                self._constant(f"low_pass_columns_{level}", columns.T)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the normalised coefficients of each image."""
        coefficients = self.coefficients(inputs)
        if self.normalise == "none":
            return coefficients
        return unit_norm(F.group_norm(coefficients, self.groups))

    @torch.no_grad()
    def coefficients(self, images: Tensor) -> Tensor:
        """Return the scattering coefficients, (B, channels * paths, height, width)."""
        images = as_float(image_batch(images, self.given))
        if self.given != self.shape:
            images = F.interpolate(images, self.shape[1:], mode="bilinear", align_corners=False)
        maps = images.reshape(-1, 1, *self.shape[1:])  # every channel is an image of its own
        coefficients = torch.cat([self._transform(chunk) for chunk in maps.split(CHUNK)])
        return coefficients.reshape(len(images), self.shape[0] * self.paths, *self.sides)

    def _transform(self, images: Tensor) -> Tensor:
        padded = F.pad(images, self.margins, mode="reflect")  # (B, 1, H, W)
        spectrum = torch.fft.fft2(padded)
        first, second = [self._average(padded, 0)], []
        for scale in range(self.J):
            modulus = self._modulus(spectrum, scale, 0).flatten(1, 2)  # (B, L, H / 2^scale, W / 2^scale)
            first.append(self._average(modulus, scale))
            if scale + 1 < self.J:
                inner = torch.fft.fft2(modulus)
                finer = [self._average(self._modulus(inner, j, scale), j) for j in range(scale + 1, self.J)]
                second.append(torch.cat(finer, 2).flatten(1, 2))  # (B, L * (J - scale - 1) * L, h, w)
        return torch.cat(first + second, 1)

    def _modulus(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """Return the modulus of the wavelet coefficients at a scale, (B, paths, L, h, w), from (B, paths, H, W)."""
        folds = self.get_buffer(f"wavelets_{scale}_{level}")  # (factor, factor, L, h, 2 w)
        factor, _, wavelets, height, width = folds.shape
        parts = torch.view_as_real(spectrum).reshape(*spectrum.shape[:2], factor, height, factor, width)
        product = parts.new_empty(*spectrum.shape[:2], wavelets, height, width)
        torch.mul(parts[:, :, None, 0, :, 0], folds[0, 0], out=product)
        for row in range(factor):
            for column in range(row == 0, factor):
                product.addcmul_(parts[:, :, None, row, :, column], folds[row, column])
        if hasattr(self, f"inverse_{scale}_0"):
            along_rows = product @ self.get_buffer(f"inverse_{scale}_1")  # (..., h, real and imaginary w)
            whole_map = along_rows.reshape(-1, 2 * height, width // 2)
            planes = torch.matmul(self.get_buffer(f"inverse_{scale}_0"), whole_map)
            real, imaginary = planes.reshape(*product.shape[:3], 2, height, width // 2).unbind(3)
        else:
            complex_product = torch.view_as_complex(product.reshape(*product.shape[:-1], width // 2, 2))
            real, imaginary = torch.view_as_real(torch.fft.ifft2(complex_product)).unbind(-1)
        return torch.addcmul(real * real, imaginary, imaginary).sqrt_()

    def _average(self, maps: Tensor, level: int) -> Tensor:
        """Return the maps after the low-pass filter, subsampled and without margins."""
        if hasattr(self, f"low_pass_{level}"):
            return (maps.flatten(-2) @ self.get_buffer(f"low_pass_{level}")).unflatten(-1, self.sides)
        rows, columns = self.get_buffer(f"low_pass_rows_{level}"), self.get_buffer(f"low_pass_columns_{level}")
        return rows @ (maps @ columns)

    def _constant(self, name: str, values: Array) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values)).float())


def _gabor(sides: Sequence[int], sigma: float, theta: float, xi: float, slant: float) -> NDArray[np.complex128]:
    """Return a Gabor filter on the torus: a Gaussian envelope times a plane wave."""
    cos, sin = math.cos(theta), math.sin(theta)
    result: NDArray[np.complex128] = np.zeros(tuple(sides), np.complex128)
    for row in range(-2, 3):
        for column in range(-2, 3):
            x = np.arange(row * sides[0], (row + 1) * sides[0], dtype=float)[:, None]
            y = np.arange(column * sides[1], (column + 1) * sides[1], dtype=float)
            along, across = cos * x + sin * y, cos * y - sin * x
            envelope = (along**2 + (slant * across) ** 2) / (2 * sigma**2)
            result += np.exp(-envelope + 1j * xi * along)
    return result / (2 * PI_OF_THE_FILTERS * sigma**2 / slant)


def _wavelet(sides: Sequence[int], scale: int, angle: int, angles: int) -> Array:
    """Return the Fourier transform of a Morlet wavelet: a Gabor filter whose mean is subtracted."""
    theta = (int(angles - angles / 2 - 1) - angle) * math.pi / angles
    sigma, xi, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / angles
    wave, envelope = _gabor(sides, sigma, theta, xi, slant), _gabor(sides, sigma, theta, 0.0, slant)
    return np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real


def _periodised(spectra: Array, level: int) -> Array:
    """Return spectra, (..., H, W), for signals subsampled by 2^level; frequencies above are dropped, not aliased."""
    for axis in (-2, -1):
        spectra = _periodised_axis(spectra, level, axis)
    return spectra


def _periodised_axis(spectra: Array, level: int, axis: int) -> Array:
    moved = np.moveaxis(spectra, axis, -1).copy()
    side = moved.shape[-1]
    start, length = int(side * 2.0 ** (-level - 1)), int(side * (1 - 2.0**-level))
    moved[..., start : start + length] = 0
    folded = moved.reshape(*moved.shape[:-1], 2**level, side >> level).sum(-2)
    return np.moveaxis(folded, -1, axis)


def _folds(spectra: Array, factor: int) -> Array:
    """Return (L, H, W) as (factor, factor, L, H / factor, 2 W / factor), the weights of a subsampled product.

    Subsampling in space is the mean over aliased frequencies. Every weight occurs twice in a row, for the real and the
    imaginary part beside each other.
    """
    count, height, width = spectra.shape
    blocks = spectra.reshape(count, factor, height // factor, factor, width // factor).transpose(1, 3, 0, 2, 4)
    return np.repeat(blocks, 2, axis=-1) / factor**2


def _inverse_matrix(side: int, left: bool) -> Array:
    """Return a real matrix that applies an inverse DFT to complex numbers.

    The right matrix takes (real, imaginary) pairs in turn along the columns and returns the plane of real parts beside
    that of imaginary parts. The left matrix takes rows in which real and imaginary planes take turns, and returns all
    real rows and then all imaginary rows.
    """
    dft = np.fft.ifft(np.eye(side))  # symmetric
    real, imaginary = dft.real, dft.imag
    blocks = np.empty((side, 2, 2, side))  # input frequency, input part, output part, output position
    blocks[:, 0, 0], blocks[:, 0, 1], blocks[:, 1, 0], blocks[:, 1, 1] = real, imaginary, -imaginary, real
    matrix = blocks.reshape(2 * side, 2 * side)
    return matrix.T if left else matrix


def _low_pass(side: int, scales: int, level: int) -> Array:
    """Return the matrix, (outputs, side / 2^level), that filters a row, subsamples it and drops the margins."""
    sigma = 0.8 * 2 ** (scales - 1)
    positions = np.arange(-2 * side, 3 * side, dtype=float)
    gaussian = np.exp(-(positions**2) / (2 * sigma**2)).reshape(5, side).sum(0)
    spectrum = np.fft.fft(gaussian / math.sqrt(2 * PI_OF_THE_FILTERS * sigma**2)).real
    response = np.fft.ifft(np.fft.fft(np.eye(side >> level)) * _periodised_axis(spectrum, level, -1)).real  # (in, out)
    return response.T[:: 2 ** (scales - level)][1:-1]
