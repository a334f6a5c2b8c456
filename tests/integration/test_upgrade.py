"""A ledger and a sink that an earlier version made: after `semel migrate` all goes on."""

import json
from contextlib import suppress

import pytest

from fixtures.batches.account import committed, ids, quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.pipeline import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reader import dataset
from semel.repair.adopt import adopt
from semel.stage import stage

AS_REVISION_7 = """
    ALTER TABLE semel.batch DROP COLUMN replays CASCADE, DROP COLUMN generation CASCADE,
        DROP COLUMN replaced_by CASCADE, DROP COLUMN files_removed_at CASCADE,
        DROP COLUMN admits CASCADE, DROP COLUMN admission CASCADE;
    ALTER TABLE semel.batch
        ADD CONSTRAINT batch_request_unique UNIQUE (pipeline_id, request_key, ordinal),
        ADD CONSTRAINT batch_committed_whole CHECK (
        (status IN ('committed', 'finalized')) = (commit_seq IS NOT NULL)
        AND (commit_seq IS NULL) = (batch_time IS NULL)
        AND (commit_seq IS NULL) = (committed_at IS NULL));
    ALTER TABLE semel.source_partition DROP COLUMN floor;
    ALTER TABLE semel.pipeline DROP COLUMN forgotten,
        ADD COLUMN gc_floor bigint NOT NULL DEFAULT -9223372036854775808;
    ALTER TABLE semel.attempt DROP COLUMN forgotten, DROP COLUMN buckets,
        ADD COLUMN gc_floor bigint NOT NULL DEFAULT -9223372036854775808,
        ADD COLUMN bucket_min bigint;
    ALTER TABLE semel.id_run DROP COLUMN buckets,
        ADD COLUMN bucket_start bigint, ADD COLUMN bucket_end bigint;
    DROP INDEX semel.batch_interval;
    ALTER TABLE semel.id_run DROP COLUMN asked, DROP COLUMN false_hits;
    ALTER TABLE semel.source_partition
        ADD COLUMN device bigint, ADD COLUMN inode bigint, ADD COLUMN head_length int,
        ADD COLUMN head_hash text, ADD COLUMN tail_hash text NOT NULL DEFAULT '',
        ADD COLUMN first_hash text NOT NULL DEFAULT '', ADD COLUMN last_length int,
        ADD COLUMN last_hash text NOT NULL DEFAULT '', ADD COLUMN size bigint,
        ADD COLUMN mtime_ns bigint, ADD COLUMN ctime_ns bigint, ADD COLUMN birth_ns bigint,
        ADD COLUMN packed boolean NOT NULL DEFAULT false;
    UPDATE semel.source_partition SET
        device = split_part(identity, ':', 1)::bigint,
        inode = split_part(identity, ':', 2)::bigint,
        size = CASE WHEN settled THEN split_part(fingerprint, ':', 1)::bigint ELSE -1 END,
        mtime_ns = split_part(fingerprint, ':', 2)::bigint,
        ctime_ns = split_part(fingerprint, ':', 3)::bigint,
        birth_ns = (evidence ->> 'birth_ns')::bigint,
        head_length = COALESCE((evidence ->> 'head_length')::int, 0),
        head_hash = COALESCE(evidence ->> 'head_hash', ''),
        tail_hash = COALESCE(evidence ->> 'tail_hash', ''),
        first_hash = COALESCE(evidence ->> 'first_hash', ''),
        last_length = COALESCE((evidence ->> 'last_length')::int, 0),
        last_hash = COALESCE(evidence ->> 'last_hash', '');
    DROP INDEX semel.source_partition_inode, semel.source_partition_head,
        semel.source_partition_first;
    ALTER TABLE semel.source_partition DROP COLUMN identity, DROP COLUMN fingerprint,
        DROP COLUMN settled, DROP COLUMN evidence;
    ALTER TABLE semel.source_partition RENAME COLUMN name TO path;
    ALTER TABLE semel.source_partition RENAME COLUMN seen TO content;
    ALTER TABLE semel.source_partition
        RENAME CONSTRAINT source_partition_seen_check TO source_partition_content_check;
    ALTER TABLE semel.source_partition
        RENAME CONSTRAINT source_partition_name_open TO source_partition_path_open;
    ALTER TABLE semel.source_partition ADD CONSTRAINT source_partition_inode_open
        EXCLUDE USING btree (pipeline_id WITH =, device WITH =, inode WITH =)
        WHERE (retired_at IS NULL AND closed_at IS NULL) DEFERRABLE INITIALLY DEFERRED;
    CREATE INDEX source_partition_inode ON semel.source_partition (inode);
    CREATE INDEX source_partition_head ON semel.source_partition (head_hash);
    CREATE INDEX source_partition_first ON semel.source_partition (first_hash);
    ALTER TABLE semel.claim
        ADD COLUMN tail_hash text, ADD COLUMN head_length int, ADD COLUMN head_hash text,
        ADD COLUMN first_hash text, ADD COLUMN last_length int, ADD COLUMN last_hash text;
    UPDATE semel.claim SET
        tail_hash = evidence ->> 'tail_hash', head_hash = evidence ->> 'head_hash',
        head_length = (evidence ->> 'head_length')::int, first_hash = evidence ->> 'first_hash',
        last_length = (evidence ->> 'last_length')::int, last_hash = evidence ->> 'last_hash';
    ALTER TABLE semel.claim DROP COLUMN evidence;
    ALTER TABLE semel.refusal RENAME COLUMN name TO path;
"""
AS_REVISION_6 = """
    ALTER TABLE semel.pipeline DROP COLUMN archive_path;
    ALTER TABLE semel.pipeline RENAME COLUMN sink_address TO sink_path;
    -- PostgreSQL gives a NOT NULL a name from 18 on.
    DO $$ BEGIN IF current_setting('server_version_num')::integer >= 180000 THEN
        ALTER TABLE semel.pipeline
            RENAME CONSTRAINT pipeline_sink_address_not_null TO pipeline_sink_path_not_null;
    END IF; END $$;
"""


def go_back(ledger: Ledger, spec: Spec, revision: int) -> None:
    """Take the ledger and the markers back to what an earlier revision had."""
    steps = {7: [AS_REVISION_7], 6: [AS_REVISION_7, AS_REVISION_6]}[revision]
    with ledger.transaction() as connection:
        for step in steps:
            connection.exec_driver_sql(step)
        connection.exec_driver_sql(
            "CREATE TABLE semel_alembic (version_num varchar(32) PRIMARY KEY);"
            f"INSERT INTO semel_alembic VALUES ('000{revision}')"
        )
    for path in layout.markers(layout.of(spec)).iterdir():
        marker = json.loads(path.read_text())
        marker["format"] = revision - 4
        for claim in marker["claims"]:
            claim |= {"path": claim.pop("name"), "packed": False, **claim.pop("evidence")}
            claim["device"], claim["inode"] = map(int, claim.pop("identity").split(":"))
            for key in ("first_hash", "last_length", "last_hash", "birth_ns"):
                claim.pop(key, None)
        if revision == 6:
            del marker["sink"]
            for file in marker["files"]:
                if file.pop("root") == "archive":
                    file["path"] = f"_semel/{file['path']}"
        path.write_text(json.dumps(marker))


@pytest.fixture(params=[6, 7])
def old(bench: Workbench, ledger: Ledger, request: pytest.FixtureRequest) -> Spec:
    """A pipeline with batches in every state, as an earlier version left it."""
    if request.param == 6:
        (bench.data / "out" / "events" / "_semel").mkdir(parents=True)
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3)])
    run(ledger, spec, "finalized")
    bench.write("in/b.jsonl", events(5, 20))
    committed(ledger, spec, "committed")
    bench.write("in/c.jsonl", events(20, 30))
    staged = plan(ledger, spec, "staged").batch.batch_id
    stage(ledger, spec, staged, LocalEngine(), log=quiet)
    bench.write("in/d.jsonl", events(30, 40))
    abandon(ledger, plan(ledger, spec, "abandoned").batch.batch_id, "by hand")
    lost = plan(ledger, spec, "lost").batch.batch_id

    def fails(_: object) -> None:
        raise RetryableError("the engine failed")

    with suppress(RetryableError):
        stage(ledger, spec, lost, LocalEngine(before_write=fails), log=quiet)
    bench.write("in/e.jsonl", events(40, 50))
    plan(ledger, spec, "planned")
    go_back(ledger, spec, request.param)
    return spec


def test_batches_in_every_state_go_on(bench: Workbench, ledger: Ledger, old: Spec) -> None:
    """Each run of before ends, none of them twice; the archive stays where it was."""
    assert migrate(ledger.dsn) == "0012"
    for key in ("finalized", "committed", "staged", "abandoned", "lost", "planned"):
        run(ledger, old, key)
    sink = old.sink_path()
    assert layout.of(old) in (sink / "_semel", sink.parent / "_semel" / sink.name)
    assert sorted(dataset(sink).to_table().column("id").to_pylist()) == ids(0, 50)
    bench.write("in/f.jsonl", events(45, 60))
    run(ledger, old, "new")
    assert sorted(dataset(sink).to_table().column("id").to_pylist()) == ids(0, 60)


def test_markers_of_several_formats_are_adopted(
    bench: Workbench, ledger: Ledger, old: Spec
) -> None:
    """What formats 2, 3 and 4 say of claims and a sink, go together; nothing is read twice."""
    migrate(ledger.dsn)
    run(ledger, old, "committed")
    lose(ledger)
    assert adopt(ledger, old, log=quiet).batches == 2
    run(ledger, old, "new")
    assert sorted(dataset(old.sink_path()).to_table().column("id").to_pylist()) == ids(0, 50)
