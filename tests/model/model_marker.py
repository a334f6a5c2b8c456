"""Finalize of replays: files, a fence, and a marker that takes the place of another.

A generation has one file, and its winner a folder of staged names; what a finalizer takes from the
folder (which code ran) is a part of the marker. A finalizer writes the marker into that folder, and
renames it. A folder goes in two steps: all that is in it, then itself if it is still empty.

What comes from outside, and what is damage, stands in model_replaced, which makes the model whole.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from model_search import Model, swap

WHO = ("Finalizer A", "Finalizer B", "Finalizer C")
FOREIGN, NONE, HALVED = 0, -1, -2
LACKS = 10
"""Added to a marker's generation when it lacks what the folder told."""
IDLE, PUBLISH, SYNC, EMPTY, REMOVE, TELL, LOOK, KEEP, KEPT, WRITE, RENAME, LATE, FOUND, MARKED = (
    range(14)
)


class Finalizer(NamedTuple):
    """`saw`: the marker that it looked at; `told`: 0, or LACKS when the folder told nothing.
    `wrote`: its marker is in its generation's folder."""

    at: int = IDLE
    generation: int = 0
    saw: int = 0
    told: int = 0
    wrote: bool = False


class Disk(NamedTuple):
    """Of generations 1, 2 and 3. `files`: 0 absent, 1 there, 2 durable. `folders`: 0 gone, 1 whole,
    2 emptied. `kept`: 0 absent, or which marker is kept; `collected`: 1 its file is due, 2 removed,
    3 that is written down and durable, 4 only written down. `durable`: the marker that outlasts a
    loss of power; `second`: a marker under a name of its own."""

    committed: int = 2
    finalized: int = 1
    marker: int = 1
    durable: int = 1
    second: int = 0
    files: tuple[int, ...] = (2, 0, 0)
    folders: tuple[int, ...] = (1, 1, 1)
    kept: tuple[int, ...] = (0, 0)
    kept_durable: tuple[bool, ...] = (False, False)
    collected: tuple[int, ...] = (0, 0)
    finalizers: tuple[Finalizer, ...] = ()
    reader: int = 0
    outages: int = 0
    foreign: bool = False
    foreign_gone: bool = False


class Finalizers(Model):
    """What finalizers do. `newest`: the last generation that there will be."""

    GUARDS = {
        "files before the marker": "the marker is replaced before the new files are durable",
        "fence": "a finalizer does not remove the folder of the generation before",
        "fence of the root": "the folder of generation 1 may stay",
        "gone is proven": "a finalizer goes on though that folder is still there",
        "fence before the look": "the folder of the generation before goes after the look",
        "told before the look": "the attempt's folder is asked after the look at the marker",
        "look at the generation": "a finalizer replaces whatever marker is there",
        "kept before": "the old marker is kept after the new one is there",
        "kept as seen": "the marker is kept as it is then, not as it was looked at",
        "kept durably": "what another finalizer kept is not fsynced",
        "marker is whole": "the new marker is not fsynced before it is renamed",
        "one rename": "the old marker is removed, then the new one gets its name",
        "the root's name": "the new marker has a name of its own, and then the old one goes",
        "marker before finalized": "the batch is finalized before its marker is durable",
        "found is durable": "a marker that another finalizer renamed is not fsynced",
        "collect asks the ledger": "collect goes by the markers that were kept alone",
        "marker lists none": "collect does not look at the marker that is there",
        "keep_replaced": "collect does not wait for those who read",
        "unlinks are durable": "collect does not fsync what it removed",
    }

    def __init__(
        self,
        without: tuple[str, ...] = (),
        scope: str = "first",
        newest: int = 2,
        finalizers: int = 2,
        outages_max: int = 1,
    ) -> None:
        super().__init__(without)
        if scope not in ("first", "late"):
            raise ValueError(f"no scope {scope!r}")
        self.scope, self.newest, self.outages_max = scope, newest, outages_max
        self.nobody = (Finalizer(),) * finalizers
        self.guards = {name: self.keeps(name) for name in self.GUARDS}
        # What comes behind its look at the marker, and between the look and the rename.
        self.looked = KEEP if self.guards["told before the look"] else TELL
        fence = () if self.guards["fence before the look"] else (EMPTY, REMOVE)
        self.changing = (self.looked, KEEP, KEPT, WRITE, RENAME, *fence)

    # Folders.

    def _emptied(self, s: Disk, g: int) -> Disk:
        finalizers = tuple(
            f._replace(wrote=False) if f.generation == g else f for f in s.finalizers
        )
        return s._replace(folders=swap(s.folders, g - 1, 2), finalizers=finalizers)

    def _removed(self, s: Disk, g: int) -> Disk:
        """It goes if nobody wrote into it since it was emptied."""
        if any(f.wrote and f.generation == g for f in s.finalizers):
            return self._emptied(s, g)
        return s._replace(folders=swap(s.folders, g - 1, 0))

    # Finalize.

    def _finalizer(self, s: Disk, k: int) -> Iterator[tuple[str, Disk]]:
        me, name = s.finalizers[k], WHO[k]

        def now(finalizer: Finalizer, state: Disk = s, **changes: object) -> Disk:
            return state._replace(finalizers=swap(state.finalizers, k, finalizer), **changes)

        if me.at == IDLE:
            if s.finalized < s.committed:
                g = s.committed
                yield f"{name} finds generation {g} committed.", now(Finalizer(PUBLISH, g))
            return
        yield f"{name} dies.", now(Finalizer())
        g = me.generation
        if me.at == PUBLISH:
            yield self._publish(s, name, me, now)
        elif me.at == SYNC:
            words = f"{name} fsyncs the output folder."
            files = swap(s.files, g - 1, 2) if s.files[g - 1] else s.files
            if not self.guards["files before the marker"]:
                files, words = s.files, f"{name} fsyncs nothing."
            yield words, now(me._replace(at=self._first()), files=files)
        elif me.at in (EMPTY, REMOVE):
            yield self._fence(s, name, me, now)
        elif me.at == TELL:
            told = 0 if s.folders[g - 1] == 1 else LACKS
            words = f"{name} reads in the folder of generation {g} which code ran"
            words += ": there is nothing." if told else "."
            first = self.guards["told before the look"]
            yield words, now(me._replace(at=LOOK if first else KEEP, told=told))
        elif me.at == LOOK:
            yield self._look(s, name, me, now)
        elif me.at in (KEEP, LATE):
            yield self._keep(s, name, me, now)
        elif me.at == KEPT:
            durable = swap(s.kept_durable, g - 2, s.kept[g - 2] > 0)
            words = f"{name} fsyncs the folder of replaced markers."
            yield words, now(me._replace(at=self._after_kept(me)), kept_durable=durable)
        else:
            yield from self._mark(s, name, me, now)

    def _first(self) -> int:
        """What comes when the files are durable."""
        if self.guards["fence before the look"]:
            return EMPTY
        return TELL if self.guards["told before the look"] else LOOK

    def _publish(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g = me.generation
        if s.files[g - 1] == 0 and s.folders[g - 1] != 1:
            words = f"{name} finds neither name of generation {g}'s file, and reads the ledger."
            return words, now(Finalizer())
        after = Finalizer() if g == 1 else me._replace(at=SYNC)  # Its marker is there for long.
        if s.files[g - 1]:
            return f"{name} finds the file of generation {g} there.", now(after)
        words = f"{name} gives the file of generation {g} its final name."
        return words, now(after, files=swap(s.files, g - 1, 1))

    def _fence(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g = me.generation - 1
        before = self.guards["fence before the look"]
        after = me._replace(at=RENAME)
        if before:
            after = me._replace(at=TELL if self.guards["told before the look"] else LOOK)
        fenced = self.guards["fence"] and (g > 1 or self.guards["fence of the root"])
        if not fenced or s.folders[g - 1] == 0:
            return f"{name} goes on: the folder of generation {g} is no matter.", now(after)
        if me.at == EMPTY:
            words = f"{name} empties the folder of generation {g}."
            return words, now(me._replace(at=REMOVE), self._emptied(s, g))
        done = self._removed(s, g)
        if done.folders[g - 1] and self.guards["gone is proven"]:
            return f"{name} finds it not empty, and begins again.", now(me._replace(at=EMPTY), done)
        if done.folders[g - 1]:
            done = s  # rmdir says that it is not empty, and that is ignored.
        return f"{name} removes the folder of generation {g}.", now(after, done)

    def _look(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g, there = me.generation, s.marker % LACKS if s.marker > 0 else s.marker
        words = f"{name} looks at the marker"
        if there == g - 1 or not self.guards["look at the generation"]:
            at = self.looked if self.guards["kept before"] else WRITE
            after = me._replace(at=at, saw=s.marker)
            return f"{words}: it is generation {there}'s.", now(after)
        if there == g:
            return f"{words}: it is its own.", now(me._replace(at=FOUND))
        words += ": it is a later one's." if there > g else ": it is no such marker, and fails."
        return words, now(Finalizer())

    def _keep(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g = me.generation
        saw = me.saw if self.guards["kept as seen"] else s.marker
        words = f"{name} keeps the marker of generation {saw % LACKS} aside as {g - 1}'s."
        there = s.kept[g - 2]
        if there and there != saw:
            return f"{name} finds another one kept, and fails.", now(Finalizer())
        if there:
            durably = self.guards["kept durably"]
            after = me._replace(at=KEPT if durably else self._after_kept(me))
            return f"{name} finds it kept.", now(after)
        kept = swap(s.kept, g - 2, saw if saw > 0 else LACKS - 1)
        return words, now(me._replace(at=KEPT), kept=kept)

    def _after_kept(self, me: Finalizer) -> int:
        """Kept in time: the marker is next. Kept late: it is there."""
        return WRITE if self.guards["kept before"] else FOUND

    def _mark(self, s: Disk, name: str, me: Finalizer, now: Callable) -> Iterator:
        g = me.generation
        if me.at == WRITE:
            after = me._replace(
                at=RENAME if self.guards["fence before the look"] else EMPTY, wrote=True
            )
            if s.folders[g - 1]:
                yield f"{name} writes the new marker into its folder.", now(after)
            else:
                yield f"{name} finds its folder gone, and reads the ledger.", now(Finalizer())
        elif me.at == RENAME:
            yield self._rename(s, name, me, now)
        elif me.at == FOUND:
            yield from self._found(s, name, me, now)
        elif me.at == MARKED:
            finalized = max(s.finalized, g)
            yield f"{name} commits `finalized`.", now(Finalizer(), finalized=finalized)

    def _rename(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g = me.generation
        if not me.wrote:
            return f"{name} finds its marker gone, and reads the ledger.", now(Finalizer())
        if s.marker != NONE and not self.guards["one rename"]:
            return f"{name} removes the old marker.", now(me, marker=NONE)
        if not s.second and not self.guards["the root's name"]:
            return f"{name} gives the new marker a name of its own.", now(me, second=g)
        after = me._replace(at=FOUND if self.guards["kept before"] else LATE, wrote=False)
        gone = s.foreign_gone or s.marker == FOREIGN
        words = f"{name} renames the marker of generation {g} over that of {s.marker % LACKS}."
        return words, now(after, marker=g + me.told, second=0, foreign_gone=gone)

    def _found(self, s: Disk, name: str, me: Finalizer, now: Callable) -> Iterator:
        """The marker of its generation is there: by itself, or by another finalizer."""
        words = f"{name} fsyncs the folder of markers."
        durable = s.durable if s.marker == FOREIGN else s.marker
        found = me.saw == 0 and not self.guards["found is durable"]
        if found or not self.guards["marker before finalized"]:
            words, durable = f"{name} fsyncs nothing.", s.durable
        yield words, now(me._replace(at=MARKED), durable=durable)
