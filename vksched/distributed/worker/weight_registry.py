"""Weight registry: the weights of one driver's plans on a worker, each until its last plan ends.

    missing(plan, hashes) --held? in a file? in the cache?--> hashes that the driver has to send
    add(plan, hash, bytes)     require(plan, hash)     forget(plan)

Examples: tests/distributed/test_local_weights.py, tests/distributed/test_node_server.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...common.dtypes import NDArray
from ...common.errors import DeviceError, VkschedError
from ...storage.lazy_array import ArrayLike
from ...storage.model_file import ModelFile
from .local_weights import ModelFolders, weight_of
from .weight_cache import HASH, WeightCache, hash_of

Digest = Callable[[ArrayLike], str]
MAX_PLANS = 1 << 12
"""Maximum number of plans of a driver."""
THREADS = 4
"""Threads that read and hash the weights of one plan."""


class WeightRegistry:
    """digest: returns the hash of a weight's contents."""

    def __init__(self, cache: WeightCache, folders: ModelFolders, digest: Digest) -> None:
        self._cache, self._folders, self._digest = cache, folders, digest
        self._plans: dict[int, dict[str, ArrayLike]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def missing(self, plan: int, asked: Sequence[Mapping[str, Any]]) -> list[str]:
        """Find weights for a plan and return the hashes of missing ones.

        Parameters
        ----------
        asked
            Weights as in `messages.WeightDocument`.

        Raises
        ------
        DeviceError
            The plan was released meanwhile.
        """
        mine = self._begun(plan)
        file_infos = {each["hash"]: each.get("file") for each in asked}
        files = self._files({(file["path"], file["bytes"]) for file in file_infos.values() if file})

        def find(name: str) -> ArrayLike | None:
            if self._plans.get(plan) is not mine:  # the plan was released; skips slow work
                return None
            held, about = self._held(name), file_infos[name]
            if held is None and about:
                held = self._in_file(name, files[about["path"], about["bytes"]], about)
            return self._cache.load(name) if held is None else held

        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "vksched-weights") as pool:
            found = dict(zip(file_infos, pool.map(find, file_infos), strict=True))
        here = {name: held for name, held in found.items() if held is not None}
        with self._lock:
            self._of(plan, mine).update(here)
        return [name for name in file_infos if name not in here]

    def _files(self, asked: Collection[tuple[str, int]]) -> dict[tuple[str, int], ModelFile | None]:
        """Return files by path and size; a file with several paths is opened once."""
        known: dict[tuple[int, ...], ModelFile] = {}
        out: dict[tuple[str, int], ModelFile | None] = {}
        for about in asked:
            found = self._folders.open(*about)
            if found is not None and found.file is not None:
                found = known.setdefault(found.file.identity, found)
            out[about] = found
        return out

    def _begun(self, plan: int) -> dict[str, ArrayLike]:
        with self._lock:
            if self._closed:
                raise DeviceError("[cluster] the driver has gone")
            if plan not in self._plans and len(self._plans) >= MAX_PLANS:
                raise DeviceError(
                    f"[cluster] expected weights of at most {MAX_PLANS} plans at once"
                )
            return self._plans.setdefault(plan, {})

    def _of(self, plan: int, mine: dict[str, ArrayLike] | None = None) -> dict[str, ArrayLike]:
        """Return the weights of a plan. mine: weights that may be dropped and added again."""
        found = self._plans.get(plan)
        if found is None or (mine is not None and found is not mine):
            raise DeviceError(
                f"[cluster] expected weights of a plan that needs some, got those of plan {plan}"
            )
        return found

    def _held(self, name: str) -> ArrayLike | None:
        with self._lock:
            return next((held[name] for held in self._plans.values() if name in held), None)

    def _in_file(
        self, name: str, file: ModelFile | None, about: Mapping[str, Any]
    ) -> ArrayLike | None:
        held = weight_of(file, about) if file is not None else None
        try:
            return held if held is not None and self._digest(held) == name else None
        except (OSError, VkschedError):  # the file is being changed
            return None

    def add(self, plan: int, name: str, data: NDArray) -> None:
        """Add a received weight. Raise DeviceError if its hash differs, or the plan did not request
        it or was released.
        """
        if not HASH.fullmatch(name) or hash_of([data]) != name:
            raise DeviceError(f"[cluster] received a weight without the hash {name[:64]!r}")
        stored = self._cache.keep(name, data)
        with self._lock:
            self._of(plan)[name] = stored

    def require(self, plan: int, name: str) -> ArrayLike:
        """Return a weight of a plan. Raise DeviceError if it was not sent."""
        with self._lock:
            found = self._plans.get(plan, {}).get(name)
        if found is None:
            raise DeviceError(f"[cluster] the weight {name[:64]!r} was not sent")
        return found

    def forget(self, plan: int) -> None:
        """Release the weights that only this plan needs."""
        with self._lock:
            self._plans.pop(plan, None)

    def close(self) -> None:
        """Release all weights and refuse new ones; searches in progress end soon."""
        with self._lock:
            self._closed = True
            self._plans.clear()
