"""Covey in Python.

``open_tree`` opens a published tree in this process, without a mount. ``CoveyFileSystem`` is the same for
everything that uses fsspec (pandas, pyarrow, dask, zarr), and also reads and writes a mounted volume.
``status`` and ``heat`` ask the daemon of a mount for its figures, and which parts of files are read most.
"""

import atexit
import os

from ._coveyfs import Buffer, Tree, __version__, _close_all, _forked, heat, status
from ._fs import CoveyFileSystem

__all__ = ["Buffer", "CoveyFileSystem", "Tree", "__version__", "heat", "open_tree", "status"]

# A forked process has none of the threads of its parent, so it opens trees of its own.
os.register_at_fork(after_in_child=_forked)
atexit.register(_close_all)

open_tree = Tree
