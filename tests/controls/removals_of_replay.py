"""How each guard of replays is taken out of the code. `guards_of_replay` says who notices."""

from collections.abc import Callable

from removals import index, patch, source, statement


def generations_may_fork() -> None:
    index("batch_generation")


def retired_ahead() -> None:
    """The output before is retired, and that committed, before the replay's commit."""

    def ahead(original: Callable) -> Callable:
        def call(ledger, spec, pipeline, batch, attempt, log):  # noqa: ANN001, ANN202
            if batch.replays is not None:
                values = {"root": batch.root, "generation": batch.generation}
                ledger.rows("commit", "retire_generation", batch_id=batch.batch_id, **values)
            return original(ledger, spec, pipeline, batch, attempt, log)

        return call

    statement("commit", "retire_generation", "AND replaced_by IS NULL")
    patch("commit", "_try", ahead)


def any_marker_is_replaced() -> None:
    source("mark", "_there", {"marker.generation < batch.generation - 1": "False"})


def nothing_is_kept() -> None:
    patch("mark", "_keep_aside", lambda _: lambda *_: None)


def kept_is_not_durable() -> None:
    """A marker that another finalizer kept is taken as it is."""
    source("mark", "_keep_aside", {"sync_folder(path.parent)": "pass"})


def two_steps() -> None:
    """The old marker goes, then the new one comes."""
    steps = "os.unlink(path)\n        faults.point('finalize.before_rename')\n        "
    source("mark", "_rename", {"os.rename(": f"{steps}os.rename("})


def a_name_of_its_own() -> None:
    """The new marker comes under another name, then it takes the old one's."""
    name = 'path.with_name(f"b99999999.json")'
    steps = f"os.link(made, {name})\n        faults.point('finalize.before_rename')\n        "
    after = f"; os.unlink({name})"
    source("mark", "_rename", {"os.rename(made, path)": f"{steps}os.rename(made, path){after}"})


def replaced_is_not_durable() -> None:
    """The batch is finalized before the marker's new name is durable."""
    source("mark", "replace", {"sync_folder(path.parent)": "pass"})


def folders_stay() -> None:
    """Who replaces a marker leaves the folder from which it came."""
    patch("mark", "_remove_fence", lambda _: lambda *_: None)


def folders_that_are_left() -> None:
    """A folder into which somebody wrote meanwhile is left."""
    source("mark", "_remove_fence", {"if not os.path.lexists(folder)": "if True"})


def late_ones_fail() -> None:
    """Whoever finds files gone does not ask whether its batch is finalized."""
    source("finalize", "finalize", {'now["status"] == BatchStatus.FINALIZED': "False"})


def replaced_files_go_at_once() -> None:
    statement(
        "collect",
        "replaced",
        "r.finalized_at < clock_timestamp() - make_interval(secs => :keep_seconds)",
        ":keep_seconds >= 0",
    )


def listed_files_go() -> None:
    """Collect does not look at the marker that is there."""
    source("collect", "_remove_output", {"marker.generation <= old.generation or": "False and"})


def unlinks_may_come_back() -> None:
    source("collect", "_remove_output", {"sync_folder(folder)": "pass"})


def a_replay_is_written_unseen() -> None:
    """What was looked at before the lock counts."""
    seen = 'now[0]["newest"] != found["newest"] or _at_work(connection, root)'
    source("replay", "plan", {seen: "False"})


def admissions_may_fork() -> None:
    index("batch_admission")


def an_admission_is_written_unseen() -> None:
    """What was looked at before the lock counts."""
    seen = '(now and now["batch_id"]) != (last and last["batch_id"])'
    source("requarantine", "_write", {seen: "False"})
