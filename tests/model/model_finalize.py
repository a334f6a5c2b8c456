"""finalize: names on a disk that may lose power, two finalizers, somebody else's files.

A committed batch has two files in a folder of staged names; each gets its final name in a folder of
its own, then the marker is written. Two finalizers run at once, and each may die at every step. The
machine may lose power: then everybody is dead, and each name that was not fsynced is there or not,
whichever is worse. Once somebody else puts a file under a final name (a restore from a backup), and
a person takes it away after finalize has complained.

What it leaves away: the content of files (right or wrong), the rows of the ledger but for the
batch's state, fsync of the staged files (they are durable before the attempt is staged), folders
that are yet to be made, retention.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from model_search import Model, setter, swap

NOT_WHOLE = "the marker lists a file that is not whole"
NOWHERE = "a file of a committed batch is under neither name"
REPLACED = "somebody else's file was replaced"
UNMARKED = "a finalized batch has no marker"
HALF_MARKER = "a marker is there by half"

FILES = (0, 1)
ABSENT, RIGHT, WRONG = 0, 1, 2
WHO = ("Finalizer A", "Finalizer B")
IDLE, LOOKING, LINKING, LINKED, SYNCED, MARKING, MARKED, DONE = range(8)


class Name(NamedTuple):
    """A file's two names. `durable`: the final one outlasts a loss of power."""

    staged: bool = True
    final: int = ABSENT
    durable: bool = False


class Finalizer(NamedTuple):
    """`looked`: at how many files; `missing`: those that it will link, as bits."""

    at: int = IDLE
    looked: int = 0
    missing: int = 0


class Disk(NamedTuple):
    """`marker`: 0 absent, 1 there, 2 durable, 3 by half. `kept`: the staged names are still due."""

    names: tuple[Name, ...] = (Name(),) * len(FILES)
    marker: int = 0
    status: str = "committed"
    finalizers: tuple[Finalizer, ...] = (Finalizer(),) * len(WHO)
    foreign: bool = False
    outages: int = 0
    replaced: bool = False


class FinalizeModel(Model):
    """See the module."""

    GUARDS = {
        "checksums decide": "a final name that exists counts as right",
        "names are never replaced": "a final name is made by a rename that replaces",
        "look again": "finalize does not look again at what it linked",
        "files before the marker": "the marker is written before the final names",
        "folders are fsynced": "the marker is written before the final names are durable",
        "marker is whole": "the marker is written in place",
        "marker before finalized": "the batch is finalized before its marker is durable",
        "staged names stay": "a staged name goes as soon as the final one is there",
        "folder goes last": "collect removes the folder of a committed batch",
    }

    outages_max = 1
    """How often the power goes."""

    def start(self) -> Disk:
        return Disk()

    def damages(self, s: Disk) -> Iterator[str]:
        if s.marker in (1, 2) and any(name.final != RIGHT for name in s.names):
            yield NOT_WHOLE
        if any(not name.staged and name.final != RIGHT for name in s.names):
            yield NOWHERE
        if s.replaced:
            yield REPLACED
        if s.status == "finalized" and s.marker == 0:
            yield UNMARKED
        if s.marker == 3:
            yield HALF_MARKER

    def ended(self, s: Disk) -> bool:
        return s.status == "finalized" and not any(name.staged for name in s.names)

    def steps(self, s: Disk) -> Iterator[tuple[str, Disk]]:
        for k in range(len(WHO)):
            yield from self._finalizer(s, k)
        if s.status == "finalized" or not self.folder_goes_last:
            if any(name.staged for name in s.names):
                yield "Collect removes the attempt's folder.", self._removed(s)
        for i in FILES:
            if s.names[i].final == ABSENT and not s.foreign:
                words = f"Somebody puts another file under the final name of file {i + 1}."
                wrong = s.names[i]._replace(final=WRONG, durable=True)
                yield words, s._replace(foreign=True, names=swap(s.names, i, wrong))
            if s.names[i].final == WRONG:
                words = f"A person takes away what is under the final name of file {i + 1}."
                clear = s.names[i]._replace(final=ABSENT, durable=False)
                yield words, s._replace(names=swap(s.names, i, clear))
        if s.outages < self.outages_max:
            yield from self._outage(s)

    def _removed(self, s: Disk) -> Disk:
        return s._replace(names=tuple(name._replace(staged=False) for name in s.names))

    def _outage(self, s: Disk) -> Iterator[tuple[str, Disk]]:
        """Each name that was not fsynced stays or goes."""
        may = [(True, False) if n.final == RIGHT and not n.durable else (True,) for n in s.names]
        for *stays, marked in product(*may, (True, False) if s.marker == 1 else (True,)):
            names = tuple(
                name._replace(final=name.final if stay else ABSENT, durable=stay and name.final > 0)
                for name, stay in zip(s.names, stays, strict=True)
            )
            marker = (2 if marked else 0) if s.marker == 1 else s.marker
            gone = [f"the final name of file {i + 1}" for i in FILES if not stays[i]]
            gone += [] if marked else ["the marker"]
            words = "The power goes; lost: " + (", ".join(gone) or "nothing") + "."
            yield words, s._replace(
                names=names,
                marker=marker,
                finalizers=(Finalizer(),) * len(WHO),
                outages=s.outages + 1,
            )

    def _finalizer(self, s: Disk, k: int) -> Iterator[tuple[str, Disk]]:
        me, name = s.finalizers[k], WHO[k]
        now = setter(s, "finalizers", k)
        if me.at == IDLE:
            if s.status == "committed":
                first = LOOKING if self.files_before_the_marker else SYNCED
                yield f"{name} finds the batch committed.", now(Finalizer(first))
            return
        yield f"{name} dies.", now(Finalizer())
        if me.at == LOOKING:
            yield self._look(s, name, me, now)
        elif me.at == LINKING:
            yield self._link(s, name, me, now)
        elif me.at == LINKED:
            names = tuple(n._replace(durable=n.final != ABSENT) for n in s.names)
            words = f"{name} fsyncs the output folders."
            if not self.folders_are_fsynced:
                names, words = s.names, f"{name} fsyncs nothing."
            after = SYNCED if self.files_before_the_marker else DONE
            yield words, now(Finalizer(after), names=names)
        elif me.at == SYNCED:
            yield from self._mark(s, name, now)
        elif me.at == MARKING:
            durable = 2 if s.marker and self.marker_before_finalized else s.marker
            after = MARKED if self.files_before_the_marker else LOOKING
            words = f"{name} fsyncs the marker's folder."
            yield words, now(Finalizer(after), marker=durable)
        elif me.at == MARKED:
            words = f"{name} commits `finalized`."
            yield words, now(Finalizer(DONE), status="finalized")
        elif s.status == "committed":
            yield f"{name} commits `finalized`.", now(Finalizer(DONE), status="finalized")
        else:
            words = f"{name} removes the attempt's folder."
            yield words, self._removed(now(Finalizer()))

    def _look(self, s: Disk, name: str, me: Finalizer, now: object) -> tuple[str, Disk]:
        """Looks at one file; after the last it knows what to do."""
        i = me.looked
        file = s.names[i]
        right = file.final == RIGHT or (file.final == WRONG and not self.checksums_decide)
        if not right and (file.final == WRONG or not file.staged):
            return f"{name} fails: file {i + 1} is not as it should be.", now(Finalizer())
        there = "is right" if right else "is absent"
        words = f"{name} looks: the final name of file {i + 1} {there}."
        missing = me.missing | (0 if right else 1 << i)
        if i + 1 < len(FILES):
            return words, now(Finalizer(LOOKING, i + 1, missing))
        return words, now(Finalizer(LINKING, 0, missing) if missing else Finalizer(LINKED))

    def _link(self, s: Disk, name: str, me: Finalizer, now: object) -> tuple[str, Disk]:
        i = (me.missing & -me.missing).bit_length() - 1
        file, rest = s.names[i], me.missing & (me.missing - 1)
        again = Finalizer(LOOKING) if self.look_again else Finalizer(LINKED)
        after = Finalizer(LINKING, 0, rest) if rest else again
        if not file.staged or (file.final != ABSENT and self.names_are_never_replaced):
            return f"{name} cannot link file {i + 1}: a name is taken or gone.", now(after)
        linked = Name(staged=self.staged_names_stay, final=RIGHT)
        words = f"{name} gives file {i + 1} its final name."
        replaced = s.replaced or file.final == WRONG
        return words, now(after, names=swap(s.names, i, linked), replaced=replaced)

    def _mark(self, s: Disk, name: str, now: object) -> Iterator[tuple[str, Disk]]:
        if s.marker in (1, 2):
            yield f"{name} finds the marker that it would write.", now(Finalizer(MARKING))
        elif s.marker == 3 or self.marker_is_whole:
            yield f"{name} writes the marker.", now(Finalizer(MARKING), marker=1)
        else:
            yield f"{name} begins to write the marker.", now(Finalizer(SYNCED), marker=3)
