"""``forebay.zarr``: Zarr v3 over Forebay.

``View`` shows a space as a read-only hierarchy, one chunk per piece. ``Store`` is a store that Zarr reads and writes,
of all processes of a node. ``Cache`` keeps what any other store holds on the tiers of this node.
"""

from forebay.zarr._cache import Cache
from forebay.zarr._store import Store
from forebay.zarr._view import View

__all__ = ["Cache", "Store", "View"]
