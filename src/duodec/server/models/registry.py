"""Load models when clients ask for them, and unload those that nobody uses to make space."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from sys import maxsize
from time import monotonic

from duodec.backends.loaded import Embedder
from duodec.errors import DuodecError
from duodec.llm import LLM
from duodec.machine.cores import available_cores, keep_to
from duodec.models.metadata import Use
from duodec.server.errors import FINAL, ApiError, busy
from duodec.server.http.intake import Workers
from duodec.server.logs import log
from duodec.server.models.residence import Residence
from duodec.server.models.served import ModelLease, Served

LOOK_S = 0.02  # between two looks at whether a model's last request has ended

Engine = LLM | Embedder


@dataclass(frozen=True)
class Source:
    """Where a model comes from. ``load`` and ``fits`` are told the bytes of memory that look free
    and are taken, by weights that are mapped; ``fits`` tells whether memory holds this model, too.
    Both raise what is wrong with it, from any thread. ``method`` decodes where a request names
    none; None: the default. ``path`` tells where its file or folder is, once it is loaded. ``use``
    tells what it is for, before it is loaded, and raises what is wrong with its file."""

    load: Callable[[int], Engine]
    fits: Callable[[int], bool] = lambda taken: True
    method: str | None = None
    path: Callable[[], Path | None] = lambda: None
    use: Callable[[], Use] = lambda: "completion"


class Models:
    """The models of a server by name, ``most`` of them in memory at once.

    A request for a model that is not loaded waits until it is. All requests that wait for one model
    are served once it is there; models are loaded in the order in which they were first asked for.
    A model that must make space may stay for a while first, ``most_stay_s`` at most (`Residence`).
    Then it finishes what it has begun, but begins nothing more. ``most_waiting`` requests wait for
    one model at most: the rest of the queue is for those of others.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        most: int,
        serve: Callable[[str, Engine, str | None], Served],
        *,
        most_stay_s: float = inf,
        most_waiting: int = maxsize,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._sources = dict(sources)
        self._most = most
        self._serve = serve
        self._loaded: dict[str, Served] = {}
        self._uses: dict[str, Use] = {}  # of the models of which it is known
        self._clock, self._most_waiting = clock, most_waiting
        self._residence = Residence(most_stay_s, clock)
        self._leaving: str | None = None  # it takes no new requests
        self._waiting: dict[str, list[asyncio.Future[ModelLease[Served]]]] = {}
        self._work: asyncio.Task[None] | None = None
        self._worker = Workers("duodec-load", 1)
        self._has_begun = False  # the first model was loaded once
        self._past = (0, 0)  # forward passes and restarts of drafters of unloaded models

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    @property
    def loaded(self) -> tuple[Served, ...]:
        return tuple(self._loaded.values())

    @property
    def is_loading(self) -> bool:
        """A model is being loaded or unloaded in its thread."""
        return self._worker.is_busy

    @property
    def num_forwards(self) -> int:
        """Forward passes, those of unloaded models included."""
        return self._past[0] + sum(model.scheduler.num_forwards for model in self.loaded)

    @property
    def num_restarts(self) -> int:
        """Starts of drafters after each one's first, those of unloaded models included."""
        return self._past[1] + sum(model.num_restarts for model in self.loaded)

    def find(self, name: str) -> str | None:
        """The model that a client means by a name, whose case and ``:latest``, which Ollama's
        clients add, say nothing; None: there is none."""
        if name in self._sources:
            return name
        return next((own for own in self._sources if _plain(own) == _plain(name)), None)

    async def first_for(self, use: Use) -> str:
        """The first model of this use; where there is none, the first of all."""
        for name in self.names:
            if name not in self._uses:
                with suppress(DuodecError):  # it is told to those who ask for this model
                    self._uses[name] = await self._worker.run(self._sources[name].use)
            if self._uses.get(name) == use:
                return name
        return self.names[0]

    def get(self, name: str) -> Served | None:
        """The model, if it is loaded."""
        return self._loaded.get(name)

    def path(self, name: str) -> Path | None:
        """Where the file or folder of a model is, if it is loaded."""
        return self._sources[name].path() if name in self._loaded else None

    def state(self, name: str) -> str:
        """As llama.cpp's router names it: loaded, loading or unloaded."""
        if name in self._loaded:
            return "loaded"
        is_first = name == self.names[0] and not self._has_begun
        return "loading" if is_first or name in self._waiting else "unloaded"

    def load_now(self, name: str, llm: Engine | None = None) -> None:
        """Load a model, or serve this one by that name, before there are clients. Raises what is
        wrong with it."""
        begin_s = self._clock()
        self._loaded[name] = self._started(name, llm)
        self._residence.begin(name, self._clock() - begin_s)
        self._has_begun = True

    async def lease(self, name: str) -> ModelLease[Served]:
        """A lease of this model, once it is loaded. Raises ApiError if it cannot be loaded, or if
        too many wait for it."""
        model = self._loaded.get(name)
        if model is not None and name != self._leaving:
            return model.lease()
        if self._num_waiting(name) >= self._most_waiting:
            raise busy(
                5, f"{self._most_waiting} requests wait for '{name}' to be loaded; ask later"
            )
        future: asyncio.Future[ModelLease[Served]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(future)
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._bring_all())
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()  # it came when nobody waited for it any more
            raise

    # --- loading

    async def _bring_all(self) -> None:
        """Load what requests wait for, one model after the other."""
        while self._waiting:
            name = next(iter(self._waiting))
            error: ApiError | None = None
            try:
                await self._bring(name)
            except Exception as problem:  # noqa: BLE001  told to everybody who waits
                error = _not_loaded(name, problem)
            for future in self._waiting.pop(name):
                if future.done():
                    continue
                if error is None:
                    future.set_result(self._loaded[name].lease())
                else:
                    future.set_exception(error)

    async def _bring(self, name: str) -> None:
        """Have a model in memory. Raises what is wrong with it, before any other makes space."""
        while name not in self._loaded and self._is_awaited(name):
            fits = await self._worker.run(self._sources[name].fits, self._taken_bytes)
            if self._loaded and (len(self._loaded) >= self._most or not fits):
                await self._unload_for(name)
            else:
                begin_s = self._clock()
                model = await self._worker.run(self._started, name)
                self._residence.begin(name, self._clock() - begin_s)
                self._loaded[name] = model
                log.info("loaded", extra={"facts": {"model": name}})

    def _is_awaited(self, name: str) -> bool:
        """Some request for this model has not left."""
        return self._num_waiting(name) > 0

    def _num_waiting(self, name: str) -> int:
        """Requests for this model that have not left."""
        return sum(not future.done() for future in self._waiting.get(name, ()))

    @property
    def _taken_bytes(self) -> int:
        return sum(model.mapped_bytes for model in self.loaded)

    async def _unload_for(self, name: str) -> None:
        """Unload a guest, or the model that has been idle for the longest, once one has stayed for
        its time and is idle; until then the one that was used the longest ago takes nothing new."""
        residence = self._residence

        def order(model: Served) -> tuple[bool, bool, bool, float]:
            stays, is_guest = residence.stays(model), residence.is_guest(model)
            return stays, not is_guest, model.is_busy, model.used_s

        try:
            while True:
                model = min(self.loaded, key=order)
                may_leave = not residence.stays(model)
                self._leaving = model.name if may_leave else None
                if not self._is_awaited(name):
                    return
                if may_leave and model.end():
                    break
                await asyncio.sleep(LOOK_S)
        finally:
            self._leaving = None
        residence.end(model, is_awaited=self._is_awaited(model.name))
        del self._loaded[model.name]
        self._past = (
            self._past[0] + model.scheduler.num_forwards,
            self._past[1] + model.num_restarts,
        )
        await self._worker.run(_unloaded, model)

    def _started(self, name: str, llm: Engine | None = None) -> Served:
        cores = available_cores()
        llm = llm or self._sources[name].load(self._taken_bytes)
        try:
            model = self._serve(name, llm, self._sources[name].method)
            self._uses[name] = model.use
        except BaseException:
            llm.close()
            raise
        finally:
            keep_to(cores)  # a GPU's launching thread keeps to few, and this one loads others
        return model

    # --- the end

    def free(self) -> None:
        """Free all models; their threads have ended."""
        for model in self.loaded:
            model.free()


def _plain(name: str) -> str:
    return name.casefold().removesuffix(":latest")


def _unloaded(model: Served) -> None:
    model.close()
    model.free()
    log.info("unloaded", extra={"facts": {"model": model.name}})


def _not_loaded(name: str, problem: Exception) -> ApiError:
    """What clients are told; the operator reads the rest in the log."""
    is_ours = isinstance(problem, DuodecError)
    log.error("%s was not loaded: %s", name, problem, exc_info=None if is_ours else problem)
    why = str(problem) if is_ours else "see the server's log"
    return ApiError(
        500, f"the model '{name}' cannot be loaded: {why}", kind="server_error",
        code="model_not_loaded", headers=FINAL,
    )  # fmt: skip
