"""Datasets into a space: as a version of their own, or into an open step."""

import contextlib
import os
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

import forebay as fb
from forebay import errors
from forebay.xarray._backend import ForebayBackendEntrypoint, space_name
from forebay.xarray._kept import HINT, family
from forebay.xarray._layout import Layout
from forebay.xarray._names import group_of
from forebay.xarray._read import array_below
from forebay.xarray._write import WriteStore, sizes_unlimited

_KEPT = ("dtype", "_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "units", "calendar")

Encoding = Mapping[Hashable, Mapping[str, Any]]


def save(
    data: xr.Dataset | xr.DataArray | xr.DataTree,
    name: str,
    *,
    mode: Literal["w", "a", "x"] = "w",
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | str | None = None,
    **options: Any,
) -> int:
    """Writes the data as one version of a space, and closes it; returns the number of the version.

    ``mode``: as of ``forebay.open``. ``"w"`` starts over, ``"a"`` adds a version behind those that are complete,
    ``"x"`` refuses a space that is there. The version holds these variables and no others. An added version keeps
    the encoding of the version before (dtype, packing, units of times) unless ``encoding`` names the variable.

    ``encoding``, ``unlimited_dims``: as of ``Dataset.to_netcdf``; of a tree, by the path of the group. An explicit
    ``chunksizes`` puts a variable in pieces of this shape; a Dask array is put in its chunks. ``options`` are those of
    ``forebay.open``. The retention is ``"forever"`` if it is left out: with ``"released"`` a space that was read goes.

    Dask arrays are computed here, by threads of this process. Blocks while the space is full, as a put does, and while
    another thread saves into the same space. It is one writer by itself, also in a program of several ranks. Raises
    ``Usage`` for what a space cannot hold, ``VariableMismatch`` where an added version would need another encoding, and
    what ``forebay.open`` and ``put`` raise.

    What cannot be encoded is refused before anything is replaced, but Dask arrays are encoded while they are put. A
    failure from then on adds no version: of ``"a"`` those before stay, ``"w"`` and ``"x"`` leave a space of none.
    """
    if mode not in ("w", "a", "x"):
        raise errors.Usage(f'mode={mode!r} is none of "w", "a", "x"')
    with _alone(name):
        before = _newest(name) if mode == "a" else None
        stores = _encoded(data, encoding, unlimited_dims, before)
        if before is None:
            options.setdefault("retention", "forever")
        if not {"rank", "size", "comm"} & options.keys():
            options.update(rank=0, size=1)
        with fb.open(space_name(name), mode, **options) as writer:
            try:
                writer.begin_step()
                step = writer.step
                _put(stores, step)
                writer.end_step()
            except BaseException:
                _give_up(writer)
                raise
            return step.version


def _give_up(writer: fb.Writer) -> None:
    """Aborts the step and closes: what is complete is all that there will be, and no process waits or died."""
    # An error here would hide the one that is on its way.
    with contextlib.suppress(errors.Error):
        writer.abort_step()
    with contextlib.suppress(errors.Error):
        writer.close()


_saving: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
_saving_lock = threading.Lock()


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Lets one thread at a time save into a space: a second writer of one process would close the first."""
    path = os.path.abspath(os.path.join(fb.root(), space_name(name)))
    with _saving_lock:
        lock = _saving.setdefault(path, threading.RLock())
    with lock:
        yield


def _after_fork() -> None:
    """No thread that held a lock in the parent is in the child."""
    global _saving, _saving_lock
    _saving, _saving_lock = weakref.WeakValueDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def put(
    data: xr.Dataset | xr.DataArray | xr.DataTree,
    step: fb.WriteStep,
    *,
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | str | None = None,
) -> None:
    """Puts the data into an open step of a writer, whole: of a group of writers, one rank does it.

    For a simulation that is itself written with xarray: readers see each step as it ends. Each version has the encoding
    that the data say; give times fixed ``units`` so that versions can be read as one. Otherwise as ``save``.
    """
    _put(_encoded(data, encoding, unlimited_dims, None), step)


class _Before:
    """The newest version of a space that is added to: the encodings that xarray found, and what is stored."""

    def __init__(self, groups: dict[str, xr.Dataset]) -> None:
        self.encodings: dict[str, dict[Hashable, dict[str, Any]]] = {}
        self.layouts: dict[str, dict[str, Layout]] = {}
        self.families: dict[str, dict[str, str | None]] = {}
        for path, dataset in groups.items():
            self.families[group_of(path)] = {str(name): family(v) for name, v in dataset.variables.items()}
            kept = {name: _kept(variable.encoding) for name, variable in dataset.variables.items()}
            self.encodings[group_of(path)] = kept


def _newest(name: str) -> "_Before | None":
    """None where there is no such space, or no complete version in it."""
    backend = ForebayBackendEntrypoint()
    with contextlib.suppress(errors.PeerMissing, errors.TimedOut, errors.ProducerDied):
        groups = backend.open_groups_as_dict(name)
        try:
            before = _Before(groups)
            for path, stored in backend.open_groups_as_dict(
                name, mask_and_scale=False, decode_times=False, concat_characters=False, decode_coords=False
            ).items():
                before.layouts[group_of(path)] = _layouts(stored)
                stored.close()
        finally:
            for dataset in groups.values():
                dataset.close()
        return before
    return None


def _layouts(stored: xr.Dataset) -> dict[str, Layout]:
    found = {str(name): array_below(variable._data) for name, variable in stored.variables.items()}
    return {name: array.layout for name, array in found.items() if array is not None}


def _kept(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """What the encoding of a stored variable says about one that is added."""
    dtype = encoding.get("dtype")
    if dtype is None or getattr(dtype, "kind", "O") not in "biufc":
        return {}
    kept = {key: encoding[key] for key in _KEPT if key in encoding}
    # Else xarray would fill floats with NaN where the version before has no fill value.
    fill = kept.setdefault("_FillValue", None)
    if _is_nan(fill) and "missing_value" in kept and not _is_nan(kept["missing_value"]):
        # That one xarray adds by itself, and takes it for a conflict when it is said.
        del kept["_FillValue"]
    return kept


def _is_nan(value: object) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _encoded(
    data: xr.Dataset | xr.DataArray | xr.DataTree,
    encoding: Mapping[Any, Any] | None,
    unlimited_dims: Iterable[Hashable] | str | None,
    before: _Before | None,
) -> list[WriteStore]:
    """One store for each group, its variables encoded."""
    if isinstance(data, xr.DataTree):
        top = group_of(data.path)
        of_groups = {_below(top, str(path)): given for path, given in (encoding or {}).items()}
        nodes = {_below(top, node.path): node.to_dataset(inherit=node is data) for node in data.subtree}
        unknown = sorted(set(of_groups) - set(nodes))
        if unknown:
            raise errors.Usage(f"unexpected encoding of groups {unknown}, which the tree does not have")
    else:
        dataset = _of_array(data) if isinstance(data, xr.DataArray) else data
        nodes, of_groups = {"": dataset}, {"": encoding or {}}
    stores = [
        _store(dataset, group, of_groups.get(group, {}), unlimited_dims, before) for group, dataset in nodes.items()
    ]
    for store in stores:
        store.finish(set(nodes))
    return stores


def _below(top: str, path: str) -> str:
    """The group by its path from the top on: DataTree.to_netcdf takes paths in the whole tree, as nodes have them."""
    group = group_of(path)
    if top and path.startswith("/") and (group == top or group.startswith(top + "/")):
        return group.removeprefix(top).lstrip("/")
    return group


def _of_array(array: xr.DataArray) -> xr.Dataset:
    """As DataArray.to_netcdf does it, so that open_dataarray finds an array that is named like a coordinate."""
    if array.name not in array.coords and array.name not in array.dims:
        return array.to_dataset(name=array.name or "data")
    dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
    dataset.attrs[DATAARRAY_NAME] = array.name
    return dataset


def _store(
    dataset: xr.Dataset,
    group: str,
    encoding: Encoding,
    unlimited_dims: Iterable[Hashable] | str | None,
    before: _Before | None,
) -> WriteStore:
    for name in dataset.variables:
        _check_name(name)
    store = WriteStore(group)
    if before is not None:
        store.expected, store.families = before.layouts.get(group, {}), before.families.get(group, {})
    store.explicit = frozenset(encoding)
    if before is not None:
        dataset = dataset.copy(deep=False)
        for name, kept in before.encodings.get(group, {}).items():
            if name in dataset.variables and name not in encoding:
                variable = dataset.variables[name]
                # What its attributes say was not decoded, and is stored as it is.
                kept = {key: value for key, value in kept.items() if key not in variable.attrs}
                if np.ndim(kept.get("missing_value")):
                    raise errors.VariableMismatch(
                        f"variable {name} has several missing values in the version before, and xarray encodes one",
                        {"variable": str(name)},
                        HINT,
                    )
                variable.encoding = {**variable.encoding, **kept}
    dataset.dump_to_store(store, encoding=dict(encoding), unlimited_dims=sizes_unlimited(dataset, unlimited_dims))
    return store


def _check_name(name: Hashable) -> None:
    if name == "":
        raise errors.Usage(f"Invalid name {name!r}: a string must be length 1 or greater")
    if name is not None and not isinstance(name, str):
        raise errors.UsageType(f"Invalid name {name!r}: it must be either a string or None")


def _put(stores: list[WriteStore], step: fb.WriteStep) -> None:
    for store in stores:
        store.put(step)
