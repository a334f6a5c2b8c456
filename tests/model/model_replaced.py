"""Replay on the disk: a marker that is replaced, by finalizers of two generations at once.

Finalizers take up what is committed, again and again; each may stand still for ever, die, or go on
late. The machine may lose power: then everybody is dead, and what was not fsynced is there or not,
whichever is worse. Collect removes the files of generations that were replaced; a reader looks at
the marker, then at what it lists. Once somebody else puts another marker there, and a person puts
the right one back.

It starts with generation 1 finalized and 2 committed, and with a finalizer that stood still since
it was to publish generation 1. Scope "late" starts with generation 2 finalized, and with a
finalizer that stood still since it found generation 1's marker, and was to replace that.

A generation has one file, and its winner a folder of staged names; what a finalizer takes from the
folder (which code ran) is a part of the marker. A finalizer writes the marker into that folder, and
renames it. A folder goes in two steps: all that is in it, then itself if it is still empty.

What it leaves away: the ledger's part (model_replay), the nine cases of each file (model_finalize),
rows of a table, an old marker that is put there between a finalizer's look and its rename, and a
reader that is slower than `limits.keep_replaced`.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

from model_search import Model, setter, swap

MISSING = "the marker lists a file that is not there"
BENEATH = "a file goes while a reader of its marker is at work"
OLDER = "the marker is older than the generation that is finalized"
NEITHER = "there is no marker"
BOTH = "two generations have a marker"
HALF = "the marker is there by half"
LOST_KEPT = "a replaced marker was not kept"
WRONG_KEPT = "a marker was kept as another generation's"
FOREIGN_GONE = "somebody else's marker was replaced"
STRAY = "a file of a replaced generation is back after collect removed it"
UNTOLD = "the marker lacks what the attempt's folder told"

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


class ReplacedModel(Model):
    """See the module."""

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
        "one name": "the new marker has a name of its own, and then the old one goes",
        "marker before finalized": "the batch is finalized before its marker is durable",
        "found is durable": "a marker that another finalizer renamed is not fsynced",
        "collect asks the ledger": "collect goes by the markers that were kept alone",
        "marker lists none": "collect does not look at the marker that is there",
        "keep_replaced": "collect does not wait for those who read",
        "unlinks are durable": "collect does not fsync what it removed",
    }

    scope = "first"
    newest = 2
    """The last generation that there will be."""
    finalizers = 2
    outages_max = 1

    @cached_property
    def nobody(self) -> tuple[Finalizer, ...]:
        return (Finalizer(),) * self.finalizers

    @cached_property
    def looked(self) -> int:
        """What comes behind a finalizer's look at the marker."""
        return KEEP if self.told_before_the_look else TELL

    @cached_property
    def changing(self) -> tuple[int, ...]:
        """What comes between that look and the rename."""
        fence = () if self.fence_before_the_look else (EMPTY, REMOVE)
        return (self.looked, KEEP, KEPT, WRITE, RENAME, *fence)

    def start(self) -> Disk:
        if self.scope == "first":
            return Disk(finalizers=(Finalizer(PUBLISH, 1), *self.nobody[1:]))
        late = Finalizer(self.looked, 2, saw=1)
        return Disk(
            finalized=2,
            marker=2,
            durable=2,
            files=(2, 2, 0),
            folders=(0, 1, 1),
            kept=(1, 0),
            kept_durable=(True, False),
            finalizers=(late, *self.nobody[1:]),
        )

    def damages(self, s: Disk) -> Iterator[str]:
        shown = s.marker % LACKS if s.marker > 0 else 0
        if shown and not s.files[shown - 1]:
            yield MISSING
        if s.reader and not s.files[s.reader - 1]:
            yield BENEATH
        if shown and shown < s.finalized:
            yield OLDER
        if s.marker == NONE:
            yield NEITHER
        if s.second:
            yield BOTH
        if s.marker == HALVED:
            yield HALF
        if any(not s.kept[g - 1] for g in range(1, s.finalized)):
            yield LOST_KEPT
        if any(kept and kept % LACKS != g for g, kept in enumerate(s.kept, 1)):
            yield WRONG_KEPT
        if s.foreign_gone:
            yield FOREIGN_GONE
        if any(done == 3 and there for done, there in zip(s.collected, s.files, strict=False)):
            yield STRAY
        if s.marker > LACKS:
            yield UNTOLD

    def ended(self, s: Disk) -> bool:
        gone = s.collected[: self.newest - 1]
        return s.finalized == self.newest and not any(s.folders[: self.newest]) and set(gone) == {3}

    def steps(self, s: Disk) -> Iterator[tuple[str, Disk]]:
        for k in range(len(s.finalizers)):
            yield from self._finalizer(s, k)
        if s.committed == s.finalized == 2 < self.newest and s.marker % LACKS == 2:
            yield "Generation 3 is planned, staged and committed.", s._replace(committed=3)
        for g in range(1, s.finalized + 1):
            if s.folders[g - 1]:
                words = f"Somebody cleans up the folder of generation {g}."
                yield words, self._emptied(s, g) if s.folders[g - 1] == 1 else self._removed(s, g)
        for g in (1, 2):
            yield from self._collect(s, g)
        if s.reader:
            yield "The reader has read all.", s._replace(reader=0)
        elif s.marker > 0:
            shown = s.marker % LACKS
            yield f"A reader reads the marker of generation {shown}.", s._replace(reader=shown)
        yield from self._foreign(s)
        if s.outages < self.outages_max:
            yield from self._outage(s)

    def _foreign(self, s: Disk) -> Iterator[tuple[str, Disk]]:
        busy = any(f.at in self.changing for f in s.finalizers)
        if s.marker == FOREIGN:
            yield "A person puts the right marker back.", s._replace(marker=s.durable)
        elif not s.foreign and s.marker == s.durable and not busy:
            yield "Somebody puts another marker there.", s._replace(marker=FOREIGN, foreign=True)

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
        now = setter(s, "finalizers", k)
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
            if not self.files_before_the_marker:
                files, words = s.files, f"{name} fsyncs nothing."
            yield words, now(me._replace(at=self._first()), files=files)
        elif me.at in (EMPTY, REMOVE):
            yield self._fence(s, name, me, now)
        elif me.at == TELL:
            told = 0 if s.folders[g - 1] == 1 else LACKS
            words = f"{name} reads in the folder of generation {g} which code ran"
            words += ": there is nothing." if told else "."
            first = self.told_before_the_look
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
        if self.fence_before_the_look:
            return EMPTY
        return TELL if self.told_before_the_look else LOOK

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
        before = self.fence_before_the_look
        after = me._replace(at=RENAME)
        if before:
            after = me._replace(at=TELL if self.told_before_the_look else LOOK)
        fenced = self.fence and (g > 1 or self.fence_of_the_root)
        if not fenced or s.folders[g - 1] == 0:
            return f"{name} goes on: the folder of generation {g} is no matter.", now(after)
        if me.at == EMPTY:
            words = f"{name} empties the folder of generation {g}."
            return words, now(me._replace(at=REMOVE), self._emptied(s, g))
        done = self._removed(s, g)
        if done.folders[g - 1] and self.gone_is_proven:
            return f"{name} finds it not empty, and begins again.", now(me._replace(at=EMPTY), done)
        if done.folders[g - 1]:
            done = s  # rmdir says that it is not empty, and that is ignored.
        return f"{name} removes the folder of generation {g}.", now(after, done)

    def _look(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g, there = me.generation, s.marker % LACKS if s.marker > 0 else s.marker
        words = f"{name} looks at the marker"
        if there == g - 1 or not self.look_at_the_generation:
            at = self.looked if self.kept_before else WRITE
            after = me._replace(at=at, saw=s.marker)
            return f"{words}: it is generation {there}'s.", now(after)
        if there == g:
            return f"{words}: it is its own.", now(me._replace(at=FOUND))
        words += ": it is a later one's." if there > g else ": it is no such marker, and fails."
        return words, now(Finalizer())

    def _keep(self, s: Disk, name: str, me: Finalizer, now: Callable) -> tuple[str, Disk]:
        g = me.generation
        saw = me.saw if self.kept_as_seen else s.marker
        words = f"{name} keeps the marker of generation {saw % LACKS} aside as {g - 1}'s."
        there = s.kept[g - 2]
        if there and there != saw:
            return f"{name} finds another one kept, and fails.", now(Finalizer())
        if there:
            durably = self.kept_durably
            after = me._replace(at=KEPT if durably else self._after_kept(me))
            return f"{name} finds it kept.", now(after)
        kept = swap(s.kept, g - 2, saw if saw > 0 else LACKS - 1)
        return words, now(me._replace(at=KEPT), kept=kept)

    def _after_kept(self, me: Finalizer) -> int:
        """Kept in time: the marker is next. Kept late: it is there."""
        return WRITE if self.kept_before else FOUND

    def _mark(self, s: Disk, name: str, me: Finalizer, now: Callable) -> Iterator:
        g = me.generation
        if me.at == WRITE:
            after = me._replace(
                at=RENAME if self.fence_before_the_look else EMPTY, wrote=True
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
        if s.marker != NONE and not self.one_rename:
            return f"{name} removes the old marker.", now(me, marker=NONE)
        if not s.second and not self.one_name:
            return f"{name} gives the new marker a name of its own.", now(me, second=g)
        after = me._replace(at=FOUND if self.kept_before else LATE, wrote=False)
        gone = s.foreign_gone or s.marker == FOREIGN
        words = f"{name} renames the marker of generation {g} over that of {s.marker % LACKS}."
        return words, now(after, marker=g + me.told, second=0, foreign_gone=gone)

    def _found(self, s: Disk, name: str, me: Finalizer, now: Callable) -> Iterator:
        """The marker of its generation is there: by itself, or by another finalizer."""
        words = f"{name} fsyncs the folder of markers."
        durable = s.durable if s.marker == FOREIGN else s.marker
        found = me.saw == 0 and not self.found_is_durable
        if found or not self.marker_before_finalized:
            words, durable = f"{name} fsyncs nothing.", s.durable
        yield words, now(me._replace(at=MARKED), durable=durable)

    # Collect.

    def _collect(self, s: Disk, g: int) -> Iterator[tuple[str, Disk]]:
        done = s.collected[g - 1]
        now = setter(s, "collected", g - 1)
        if done == 0:
            due = s.finalized > g if self.collect_asks_the_ledger else s.kept[g - 1] > 0
            if self.marker_lists_none and s.marker % LACKS <= g:
                due = False
            if self.keep_replaced and s.reader == g:
                due = False  # Readers that come later read a later marker.
            if due:
                yield f"Collect finds the file of generation {g} due.", now(1)
        elif done == 1:
            files = swap(s.files, g - 1, 0)
            yield f"Collect removes the file of generation {g}.", now(2, files=files)
        elif done == 2:
            sure = self.unlinks_are_durable
            words = f"Collect {'fsyncs its folder, and ' if sure else ''}writes down that it went."
            yield words, now(3 if sure else 4)

    # Power.

    def _outage(self, s: Disk) -> Iterator[tuple[str, Disk]]:
        """What was not fsynced stays or goes. Of folders that went, all come back or none."""
        both = (True, False)
        may = [both if there == 1 else (True,) for there in s.files]
        may += [both if there and not d else (True,) for there, d in zip(s.kept, s.kept_durable)]
        may.append(both if s.marker != s.durable and s.marker != FOREIGN else (True,))
        may.append(both if 0 in s.folders or 2 in s.folders else (True,))
        may.append(both if 2 in s.collected or 4 in s.collected else (True,))
        for one, two, three, kept_1, kept_2, marked, gone, unlinked in product(*may):
            stays = (one, two, three)
            files = tuple(2 if f and stay else 0 for f, stay in zip(s.files, stays, strict=True))
            collected = s.collected
            if not unlinked:
                files = tuple(
                    2 if g < 2 and s.collected[g] in (2, 4) else f for g, f in enumerate(files)
                )
            collected = tuple({4: 3, 2: 0, 1: 0}.get(c, c) for c in collected)
            kept = tuple(
                k if stay else 0 for k, stay in zip(s.kept, (kept_1, kept_2), strict=True)
            )
            marker = s.marker if marked else s.durable
            if marker not in (s.durable, FOREIGN) and not self.marker_is_whole:
                marker = HALVED
            lost = [f"the file of generation {g + 1}" for g in range(3) if not stays[g]]
            lost += [] if kept_1 and kept_2 else ["what was kept"]
            lost += [] if marked else ["the rename of the marker"]
            lost += [] if gone else ["that folders went"]
            lost += [] if unlinked else ["that files went"]
            words = "The power goes; lost: " + (", ".join(lost) or "nothing") + "."
            yield words, s._replace(
                files=files,
                kept=kept,
                kept_durable=tuple(k > 0 for k in kept),
                marker=marker,
                durable=marker if marker != FOREIGN else s.durable,
                folders=s.folders if gone else (1, 1, 1),
                collected=collected,
                finalizers=self.nobody,
                reader=0,
                outages=s.outages + 1,
            )
