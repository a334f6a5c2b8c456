"""Replay on the disk: a marker that is replaced, by finalizers of two generations at once.

Finalizers take up what is committed, again and again; each may stand still for ever, die, or go on
late. The machine may lose power: then everybody is dead, and what was not fsynced is there or not,
whichever is worse. Collect removes the files of generations that were replaced; a reader looks at
the marker, then at what it lists. Once somebody else puts another marker there, and a person puts
the right one back.

It starts with generation 1 finalized and 2 committed, and with a finalizer that stood still since
it was to publish generation 1. Scope "late" starts with generation 2 finalized, and with a
finalizer that stood still since it found generation 1's marker, and was to replace that.

What a finalizer does stands in model_marker.

What it leaves away: the ledger's part (model_replay), the nine cases of each file (model_finalize),
rows of a table, an old marker that is put there between a finalizer's look and its rename, and a
reader that is slower than `limits.keep_replaced`.
"""

from collections.abc import Iterator
from itertools import product

from model_marker import (
    FOREIGN,
    HALVED,
    LACKS,
    NONE,
    PUBLISH,
    Disk,
    Finalizer,
    Finalizers,
)
from model_search import swap

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



class ReplacedModel(Finalizers):
    """See the module."""

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

    # Collect.

    def _collect(self, s: Disk, g: int) -> Iterator[tuple[str, Disk]]:
        done = s.collected[g - 1]

        def now(value: int, **changes: object) -> Disk:
            return s._replace(collected=swap(s.collected, g - 1, value), **changes)

        if done == 0:
            due = s.finalized > g if self.guards["collect asks the ledger"] else s.kept[g - 1] > 0
            if self.guards["marker lists none"] and s.marker % LACKS <= g:
                due = False
            if self.guards["keep_replaced"] and s.reader == g:
                due = False  # Readers that come later read a later marker.
            if due:
                yield f"Collect finds the file of generation {g} due.", now(1)
        elif done == 1:
            files = swap(s.files, g - 1, 0)
            yield f"Collect removes the file of generation {g}.", now(2, files=files)
        elif done == 2:
            sure = self.guards["unlinks are durable"]
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
            if marker not in (s.durable, FOREIGN) and not self.guards["marker is whole"]:
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
