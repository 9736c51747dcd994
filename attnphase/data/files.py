"""Datasets as files: netCDF written whole or not at all and read without trust, and JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xarray as xr
from xarray.backends import NetCDF4DataStore

from attnphase import arguments
from attnphase.data.text import json_text
from attnphase.data.validate import validate_dataset
from attnphase.errors import DatasetError
from attnphase.files.reading import LARGEST_BINARY, open_input, reason
from attnphase.files.writing import check_dataset, write_file
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import netCDF4

__all__ = ["load_dataset", "save_dataset", "to_json", "write_dataset"]


def save_dataset(ds: xr.Dataset, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a dataset as netCDF-4; an interrupted write leaves no partial file.

    Parameters
    ----------
    ds : xarray.Dataset
        A dataset that follows the schema.
    path : path-like
        The file.
    force : bool
        Replace an existing file.

    Raises
    ------
    DatasetError
        The dataset does not follow the schema, the file exists and `force` is False, or it cannot be written.
    ProblemError
        An argument is of the wrong type.
    """
    path = check_dataset(path, force)
    write_dataset(validate_dataset(ds), path)


def write_dataset(ds: xr.Dataset, path: Path) -> None:
    """Write a dataset, whatever it holds, where nothing stands in the way; see `save_dataset`.

    Raises
    ------
    DatasetError
        It cannot be written.
    """
    # no _FillValue, which xarray would add to every variable of type float
    encoding = {name: {"_FillValue": None} for name in map(str, ds.variables) if ds[name].dtype.kind == "f"}
    image = ds.drop_encoding().to_netcdf(engine="netcdf4", encoding=encoding)
    write_file(path, bytes(image))


def load_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read a dataset that `save_dataset` wrote.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    xarray.Dataset
        The dataset in memory; the file is closed.

    Raises
    ------
    DatasetError
        The file cannot be read, is truncated, is not netCDF, or does not follow the schema.
    ProblemError
        `path` is not a path.
    """
    path = arguments.path("path", path)

    def refuse(sentence: str) -> DatasetError:
        return DatasetError(f"{path}: {sentence}")

    # from memory: HDF5 keeps a damaged file open, and takes what it knows of it for the file that is written there next
    with (
        open_input(path, "netCDF file", LARGEST_BINARY, refuse) as file,
        _reading(refuse),
        netCDF4.Dataset("image", memory=file.read()) as image,
    ):
        check_content(image, refuse)
        ds = xr.open_dataset(NetCDF4DataStore(image)).load().drop_encoding()
    for name in ds.coords:
        if ds[name].dtype.kind in "OT":  # strings, depending on xarray's version
            ds[name] = ds[name].astype(str)
    try:
        return validate_dataset(ds)
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from None


@contextmanager
def _reading(refuse: Callable[[str], DatasetError]) -> Iterator[None]:
    try:
        yield
    except DatasetError:
        raise
    except (OSError, RuntimeError, ValueError, AttributeError) as error:  # what a damaged file raises
        raise refuse(f"this is not a netCDF file, or it is truncated or damaged ({reason(error)}).") from None


def check_content(image: netCDF4.Dataset, refuse: Callable[[str], DatasetError]) -> None:
    """Refuse variables that fill no file but would fill the memory: what was never written takes no place."""
    sizes = {name: 8 * math.prod(variable.shape) for name, variable in image.variables.items()}
    if sum(sizes.values()) > LARGEST_BINARY:
        largest = max(sizes, key=lambda name: sizes[name])
        raise refuse(f'variable "{largest}" has {sizes[largest] // 8} entries, more than can be held in memory.')


def to_json(ds: xr.Dataset) -> str:
    """Return a dataset's coordinates and variables as one JSON object.

    Parameters
    ----------
    ds : xarray.Dataset
        Any.

    Returns
    -------
    str
        Arrays are nested lists in the order of their dimensions, (token, row, col) last; what is not a finite number
        is null.
    """
    names = [*ds.coords, *ds.data_vars]
    return json_text({str(name): ds[name].to_numpy().tolist() for name in names})
