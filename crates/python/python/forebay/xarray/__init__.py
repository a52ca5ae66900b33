"""xarray over Forebay: versions of a space as datasets, lazily indexed, also while they are written.

::

    import xarray as xr
    import forebay.xarray

    ds = xr.open_dataset("forebay:heat", engine="forebay")                  # the newest complete version
    ds = xr.open_dataset("forebay:heat", engine="forebay", version=17)      # held until it is closed
    ds = xr.open_dataset("forebay:heat", engine="forebay", step="all")      # all versions, along dimension "step"
    tree = xr.open_datatree("forebay:heat", engine="forebay")               # variables "group/name" are groups
    for ds in forebay.xarray.follow("heat", timeout=60): ...                # each version as it becomes complete

    ds.forebay.save("result")                                               # a space of one version
    ds.forebay.save("result", mode="a")                                     # one version more

**Reading.** Opening reads names, shapes and attributes only; xarray reads the coordinates of dimensions, to index them,
and one or two values of times. ``chunks={}`` gives Dask arrays whose chunks are the pieces that were put. Datasets can
be pickled: another process opens the space by its path. Their Dask arrays are named after the space, the variable and
the version, which never changes.

**Names.** Dimensions have the names that they were put with, else ``NAME_dim_0``, ``NAME_dim_1``. The attributes of a
dataset are those of the space, and of the version over them; the attributes of a group are named ``GROUP/NAME``.

**Encoding.** Nothing is decoded here: xarray decodes and encodes by the CF conventions, and the space holds the encoded
values with the CF attributes. Flags are stored as bool, one text as a text of Forebay (``ReadStep.text`` reads it), and
arrays of texts or of fixed-width bytes as uint8 with one dimension more, ``stringN``, and the attribute
``forebay.xarray.characters``. Other attributes ``forebay.xarray.*`` hold types that Forebay has not; all of them are
hidden.

Not here: changing a complete version, ``MultiIndex`` (reset it before), writing by the processes of a Dask cluster.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import xarray as xr

import forebay as fb
from forebay.xarray._backend import ForebayBackendEntrypoint
from forebay.xarray._follow import Follower, follow
from forebay.xarray._save import put, save

__all__ = ["Follower", "ForebayAccessor", "ForebayBackendEntrypoint", "follow", "put", "save"]


class ForebayAccessor:
    """``ds.forebay``, also of arrays and trees."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def save(
        self,
        name: str,
        *,
        mode: Literal["w", "a", "x"] = "w",
        encoding: Mapping[Any, Any] | None = None,
        unlimited_dims: Iterable[Hashable] | str | None = None,
        **options: Any,
    ) -> int:
        """Writes a version of a space, as ``forebay.xarray.save``."""
        return save(self._data, name, mode=mode, encoding=encoding, unlimited_dims=unlimited_dims, **options)

    def put(
        self,
        step: fb.WriteStep,
        *,
        encoding: Mapping[Any, Any] | None = None,
        unlimited_dims: Iterable[Hashable] | str | None = None,
    ) -> None:
        """Puts into an open step, as ``forebay.xarray.put``."""
        put(self._data, step, encoding=encoding, unlimited_dims=unlimited_dims)


_xarray: Any = xr
for _register in (
    _xarray.register_dataset_accessor,
    _xarray.register_dataarray_accessor,
    _xarray.register_datatree_accessor,
):
    _register("forebay")(ForebayAccessor)
