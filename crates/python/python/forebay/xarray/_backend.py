"""The backend that ``xarray.open_dataset(..., engine="forebay")`` uses."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr
from xarray.backends import BackendEntrypoint

from forebay import errors
from forebay.xarray._names import group_of
from forebay.xarray._read import ReadStore, SpaceVariable, Version
from forebay.xarray._source import Source, many_versions, one_version
from forebay.xarray._space import Space

PREFIX = "forebay:"


def space_name(name: Any) -> str | Path:
    """What ``fb.open`` takes: a name of a space or the path of its directory, behind ``forebay:`` or ``forebay://``."""
    if isinstance(name, str):
        if name.startswith(PREFIX):
            name = name.removeprefix(PREFIX).removeprefix("//")
        return Path(name) if "/" in name else name
    if isinstance(name, os.PathLike):
        return Path(name)
    raise errors.UsageType(f"{name!r} is neither the name of a space nor a path")


class ForebayBackendEntrypoint(BackendEntrypoint):
    """Opens versions of a space as datasets: ``xarray.open_dataset("forebay:heat", engine="forebay")``.

    The methods take what ``xarray.open_dataset`` takes, and:

    ``version``
        Number of the version; the newest complete one if None. The dataset holds it until it is closed.
    ``step``
        ``"all"``, a slice of version numbers (those that are retained), or the numbers: these versions along a new
        first dimension. The variables and their attributes are those of the newest of them, the coordinates of
        dimensions too; the others are compared with it when they are read. None is held.
    ``dim``
        Name of the new dimension.
    ``group``
        Only the variables ``GROUP/NAME``; without it, only those in no group.
    ``copy``
        Whether what is read is always a copy that may be written to. Otherwise all is read-only, and a box of 1 MiB or
        more that lies in one piece is a view into the space, which holds its version.
    ``timeout``
        Seconds to wait for the space and its first version.

    Errors: ``PeerMissing`` where there is no such space, ``TimedOut`` where it has no complete version, ``VersionGone``
    where the version was dropped, ``UnknownVariable`` where there is no such group. What is read lazily can raise
    ``VersionGone``, and with ``step`` ``UnknownVariable`` and ``VariableMismatch``.
    """

    description: ClassVar[str] = "Open versions of Forebay spaces, also while they are written"
    url: ClassVar[str] = ""
    supports_groups: ClassVar[bool] = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        return isinstance(filename_or_obj, str) and filename_or_obj.startswith(PREFIX)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        version: int | None = None,
        step: Any = None,
        dim: str = "step",
        group: str | None = None,
        copy: bool = False,
        timeout: float = 0.0,
    ) -> xr.Dataset:
        """One group of one version, or of several."""
        if isinstance(filename_or_obj, Source):
            source = filename_or_obj
        else:
            source = _source(filename_or_obj, version, step, timeout, copy)
        decoders = _decoders(
            mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
        )
        try:
            return _dataset(source, group_of(group), dim, drop_variables, Version(source), decoders)
        except BaseException:
            source.release()
            raise

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        version: int | None = None,
        step: Any = None,
        dim: str = "step",
        group: str | None = None,
        copy: bool = False,
        timeout: float = 0.0,
    ) -> dict[str, xr.Dataset]:
        """All groups, by their paths from ``group`` on."""
        source = _source(filename_or_obj, version, step, timeout, copy)
        decoders = _decoders(
            mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
        )
        top = group_of(group)
        try:
            known = Version(source)
            known.members(top)
            inside = [g for g in known.groups if not top or g == top or g.startswith(top + "/")]
            return {
                "/" + g.removeprefix(top).lstrip("/"): _dataset(source, g, dim, drop_variables, known, decoders)
                for g in inside
            }
        except BaseException:
            source.release()
            raise

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """All groups as one tree. Options are those of ``open_groups_as_dict``."""
        groups = self.open_groups_as_dict(filename_or_obj, **options)
        for path, dataset in groups.items():
            odd = [str(name) for name in dataset.variables if "/" in str(name)]
            if odd:
                for one in groups.values():
                    one.close()
                raise errors.Usage(
                    f"variable {odd[0]!r} of group {path} has no place in a tree: its name is not a path",
                    {},
                    f"leave it out, with drop_variables={odd!r}, or open it by open_dataset",
                )
        tree = xr.DataTree.from_dict(groups)
        for path, dataset in groups.items():
            tree[path].set_close(dataset._close)
        return tree

    # xarray asks for them where the class is given as the engine.
    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = (
        "filename_or_obj",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "drop_variables",
        "use_cftime",
        "decode_timedelta",
        "version",
        "step",
        "dim",
        "group",
        "copy",
        "timeout",
    )


def _decoders(*values: Any) -> dict[str, Any]:
    names = ("mask_and_scale", "decode_times", "concat_characters", "decode_coords", "use_cftime", "decode_timedelta")
    return dict(zip(names, values, strict=True))


def _source(name: Any, version: int | None, step: Any, timeout: float, copy: bool) -> Source:
    if version is not None and step is not None:
        raise errors.Usage("version and step exclude each other", {"version": str(version), "step": str(step)})
    space = Space.at(space_name(name), timeout)
    if step is not None:
        return many_versions(space, step, timeout, copy)
    return one_version(space, version, timeout, copy)


def _dataset(
    source: Source, group: str, dim: str, drop: str | Iterable[str] | None, known: Version, decoders: dict[str, Any]
) -> xr.Dataset:
    dropped = [drop] if isinstance(drop, str) else list(drop or ())
    store = ReadStore(source, group, dim=dim, drop=dropped, known=known)
    # As xarray.backends.StoreBackendEntrypoint does it, with variables of our own.
    load: Any = store.load
    encoded, attrs = load()
    variables, attrs, coordinates = xr.conventions.decode_cf_variables(
        encoded, attrs, drop_variables=dropped, **decoders
    )
    found = {name: SpaceVariable.of(variable) for name, variable in variables.items()}
    coords = {name: v for name, v in found.items() if name in coordinates or v.dims == (name,)}
    data = {name: v for name, v in found.items() if name not in coords}
    dataset = xr.Dataset(data, coords=xr.Coordinates(coords, indexes={}), attrs=attrs)
    dataset.set_close(store.close)
    dataset.encoding = store.get_encoding()
    return dataset


def as_dataset(source: Source, **options: Any) -> xr.Dataset:
    """A dataset of the source through ``xarray.open_dataset``, with its options."""
    found: Any = source
    return xr.open_dataset(found, engine=ForebayBackendEntrypoint, **options)
