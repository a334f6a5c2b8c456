"""Limits with their units and reasons. Every loop, retry and wait of semel is bounded by one."""

IDS_PER_CHUNK = 672
"""Ids in one stored chunk: 8,064 bytes, which with its row fill one page of Postgres, so a look-up
reads one page. Part of the stored format: what is stored was cut by it."""

FILTER_BITS_PER_ID = 18
"""Bits of the split-block Bloom filter an id gets at least: about 0.07 % false positives."""

FILTER_PIECE_BYTES = 1 << 20
"""A stored filter is cut into pieces of this size: one large bytea broke pg_dump."""

RUNS_LIVE_PER_SHARD_MAX = 12
"""Live id runs of a shard before collect merges them: probing costs per filter, not per size, and
twelve filters send less than 1 % of new ids to a look-up."""

BUCKET_RANGES_MAX = 1_000
"""Ranges in a stored set of buckets: 20 kB. A year of working hours is 260 of them. Of more the
smallest gaps count as in it."""

SPANS_PER_HORIZON = 4
"""Drop spans in a horizon: ids are kept for 1 to 1.25 horizons, in some six tables a pipeline."""

CHUNKS_PER_READ = 2_048
"""Chunks of ids that one statement of a look-up reads at most: 16 MiB."""

FILTER_CACHE_BYTES = 4 << 30
"""Filters that a machine keeps in files: those of 1.8 billion ids. The longest unused go first."""

FILTERS_OPEN_MAX = 256
"""Filters that one process keeps mapped; then it lets go of all and maps again what it needs. Each
holds a file descriptor, of which a process often has 1,024."""

MERGE_IDS_AT_ONCE = 2 << 20
"""Ids that a merge holds in memory: about 100 MiB with the copies that sorting makes."""

OLD_IDS_AT_ONCE = 8 << 20
"""Ids that adopt holds in memory before it spills them: some 400 MiB with sorted copies."""

MARKERS_AT_ONCE = 1_000
"""Batches that one statement of adopt writes: their specs are some 2 KB each."""

DROP_LOCK_TIMEOUT_MS = 2_000
"""How long dropping a segment waits for its table: nobody should read it, or collect comes back."""

SPLIT_BYTES = 64 << 20
"""Bytes of source one task reads: half a second's work or more, beside some 20 ms that Spark needs
for a task. Fixed in the plan, so that every attempt cuts alike."""

SPLIT_OFFSETS = 200_000
"""The same of a topic, in offsets: some 40 MB of small messages."""

SPLITS_PER_TASK_MAX = 256
"""Splits that one task has at most: small files are spread over all cores. Some 0.2 s of work, and
one output file."""

SMALL_SPLIT_BYTES = 64 << 10
"""Files of up to so many bytes are read together: opening a parser for each takes a millisecond,
the time of a hundred kilobytes."""

BLOCK_BYTES = 4 << 20
"""Bytes parsed at once. One bad line makes its block go through the strict path, not the split."""

RECORD_BYTES_MAX = 64 << 20
"""Longest record. A longer line is quarantined without being held in memory as a row."""

JSON_BLOCK_BYTES = 1 << 20
"""Bytes that pyarrow parses of a JSON Lines file at once, unless a record is longer."""

CSV_FILE_BYTES = 64 << 20
"""Bytes of rows in memory (Arrow) that one CSV file is made of at most: a reader parses it at once,
which takes some four times its size."""

CSV_BLOCK_BYTES_MIN = 64 << 10
"""The smallest block by which CSV is read; pyarrow takes the memory of a block for each file."""

BLOCK_BYTES_MAX = (1 << 31) - 1
"""The largest block that pyarrow's readers take."""

LINE_STEP_BYTES = 64 << 10
"""Bytes read at once where only a line's end is looked for: at a split's two borders."""

REJECTED_HEAD_BYTES = 4_096
"""Bytes that a dead letter keeps of a record longer than RECORD_BYTES_MAX."""

REJECTED_DETAIL_CHARS_MAX = 200
"""Characters of a dead letter's explanation."""

FOUND_CHARS_MAX = 40
"""Characters of a value that it shows: enough to see what it is, and little of what is private."""

RECORD_SHOWN_CHARS = 100
"""Characters of a record that are shown: a line of a log is 110, as Airflow's page wraps none."""

LINES_NUMBERED_BYTES_MAX = 256 << 20
"""Bytes before a record in which line ends are counted to tell its line's number: 0.1 s, of a
compressed file a second. Behind that, its byte alone is told."""

RECORD_SHOWN_BYTES = 512
"""Bytes of a record that are read to show its beginning."""

KEYS_SAMPLE_RECORDS = 128
"""Records of a block in which keys are looked for that the schema does not name."""

KEYS_SAMPLE_BYTES = 128 << 10
"""Bytes of a block that are searched for them: some hundredths of the time of its parse."""

KEYS_PER_RECORD_MAX = 1_000
"""Such keys of one record that are examined: a record of 64 MiB may have millions."""

KEYS_COUNTED_MAX = 100
"""Such keys that a batch counts, the most frequent ones: a map's keys may be without end."""

KEYS_NAMED_MAX = 10
"""Such keys that a summary names."""

KEY_CHARS_MAX = 60
"""Characters of such a key that are shown."""

CSV_HEADER_BYTES_MAX = 1 << 20
"""Longest CSV header. What is longer has no line end at all, and is not a CSV file."""

BISECT_WAYS = 8
"""Parts that a block with bad lines is cut into, again and again, until they stand alone."""

NEW_SAMPLE_BYTES = 64 << 20
"""Bytes of sample files that `semel new` reads: they are in memory, and parsed some times."""

NEW_FILES_READ_MAX = 64
"""Sample files that it reads; of more it takes the names alone."""

NEW_KEYS_MAX = 200
"""Keys of JSON records that it makes columns of: more are data, and go into one column."""

NEW_FIELDS_MAX = 64
"""Fields of a struct that it declares: more are data, and the column keeps their text."""

SAMPLED_BATCH_BYTES_MIN = 4 << 20
"""Bytes of a batch from which on a part of it is judged before the whole: less is read at once."""

SAMPLE_SPLITS = 4
"""Splits of a batch whose first bytes are judged before its job starts: some milliseconds."""

SAMPLE_BYTES = 64 << 10
"""Bytes of each of them."""

LINES_COUNTED_AT_ONCE = 4
"""Splits whose line ends are counted at once, where a batch seems to be bad all through."""

COUNTED_BYTES = 256 << 10
"""Bytes in which line ends are counted at once: they fit in a core's cache."""

STREAM_COUNTED_BYTES_MAX = 2 << 30
"""Bytes of a compressed file's content in which line ends are counted: some six seconds' work."""

HEAD_BYTES = 4_096
"""Bytes at a file's start that are hashed to recognise it."""

TAIL_BYTES = 4_096
"""Bytes before the claimed end that are hashed to recognise it."""

EVIDENCE_BYTES = 4_096
"""Bytes that must agree, behind a CSV's header, for a file to be another one's by them alone."""

ALIKE_MAX = 32
"""Known files of one beginning that a new file is held against: files of one constant record."""

BATCH_BYTES_MAX = 8 << 30
"""Default of limits.bytes_per_batch_max."""

UNKNOWN_SCHEMAS_MAX = 100
"""Ids that a Schema Registry does not know, in one split: a registry that lost its newest schemas
lacks some; more are an attack, or no ids, and each is a request."""

MESSAGE_BYTES = 1 << 20
"""What a broker takes as one message by default: a few of these need no look at their size."""

BATCH_RECORDS_MAX = 50_000_000
"""Default of limits.records_per_batch_max."""

ATTEMPTS_LOST_BEFORE_LEASE = 3
"""Losses of one batch to other commits before its commit takes the pipeline's commit lease."""

COMPARE_ROUNDS_MAX = 20
"""Rounds of comparing with newer commits before a commit gives up and asks to be retried."""

LOCK_TIMEOUT_MS = 30_000
"""How long a statement waits for a lock of the ledger before it fails and is retried."""

IDLE_IN_TRANSACTION_MS = 60_000
"""Postgres ends our transaction when we hold it idle for longer: a dead client must not block."""

UNUSED_CONNECTION_SECONDS = 30
"""A connection that was unused for longer is made anew: firewalls forget those, and tell nobody."""

LEASE_SECONDS = 900
"""A commit lease ends by itself after this long: its holder may be dead."""

KEEP_REPLACED_SECONDS = 3_600
"""How long the files of an output stay that a replay replaced: somebody may be reading them."""

ORPHAN_SECONDS = 3_600
"""A planned batch without a sign of life for this long may be taken over by a later plan."""

HEARTBEAT_SECONDS = 15
"""How often the driver of a running attempt signs in."""

CLAIMS_IN_MARKER_MAX = 16
"""Claims that a marker lists itself, 5 KB; more are a Parquet file beside it. A file for each batch
would cost those of a few files two fsyncs more, and whoever reads their claims an open."""

CHECKSUMS_AT_ONCE = 4
"""Files that finalize reads at once: one core alone waits for the disk, or the disk for it."""

OUTPUT_FILE_BYTES = 512 << 20
"""Bytes of rows in memory (Arrow) that one output file is made of at most."""

LETTERS_HELD_BYTES = 64 << 20
"""Bytes of dead letters (Arrow) that a task holds before they go to a file."""

DICTIONARY_BYTES_MAX = 64 << 10
"""Bytes of a Parquet column's dictionary: columns of many values (ids, times) are found out early,
which saves a third of the writer's time, and their files are a fifth smaller."""

PARTITION_FILES_PER_SPLIT_MAX = 4_096
"""Folders that the rows of one split may go to before partition_by is refused as a wrong key."""

SPEC_BYTES_MAX = 64 << 10
"""Longest pipeline file. A spec has some hundred lines; hostile YAML is parsed at 30 KB/s."""

SQL_BYTES_MAX = 64 << 10
"""Longest file of a SQL transform; its parser takes 10 µs a byte."""

SPEC_PROBLEMS_MAX = 100
"""Problems of one pipeline file that are listed, so that a wrong file cannot fill a log."""

SPEC_DEPTH_MAX = 16
"""Deepest nesting of a pipeline file: its reader recurses, and a spec needs three levels."""

DURATION_DAYS_MAX = 3_650
"""Longest duration of a spec, so that it fits the ledger's 32-bit seconds: ten years."""

FILE_NAME_BYTES_MAX = 200
"""Longest final file name without its extension; file systems allow 255 bytes."""

RECORD_TIME_AHEAD_SECONDS = 86_400
"""How far record_time may be ahead of the ledger's clock in scope bucket: no clock is exact."""

COMMIT_ROUNDS_MAX = 16
"""Rounds (a restage, or a try to commit) of one commit call before it gives up and is retried."""

MERGES_PER_COLLECT_MAX = 64
"""Rounds of merging in one collect: each round shrinks the number of live runs."""

CONNECT_RETRIES_MAX = 6
"""Tries after the first that a lost call to Spark Connect gets: 70 s, a server's restart."""

SPARK_ANSWER_SECONDS = 10.0
"""How long the first contact with a Spark Connect server may take before Spark counts as away."""

PROGRESS_SECONDS = 3.0
"""Spark's progress is said at most this often, so that a long stage does not fill a log."""

CHECK_TASK_SECONDS = 0.5
"""A task of `semel check` takes this long at least, so that the next ones go to other executors."""

CHECK_SLOTS_MAX = 4_096
"""Tasks at once that `semel check` looks for."""

CLOCKS_APART_SECONDS_MAX = 1.0
"""How far clocks may be from the ledger's: record times and files' times are held against it."""

POSTGRES_VERSION_MIN = 14
"""The oldest PostgreSQL that a ledger may be on."""

AUDIT_CHUNK_BYTES = 32 << 20
"""Bytes of source that the audit reads at once, and of output rows that it hands to its engine."""

AUDIT_OFFENDERS_SHOWN = 5
"""Records or files that the audit shows for each broken promise; all are counted."""

COMPARE_MEMORY_BYTES = 2 << 30
"""Memory in which a compare holds keys and hashes of rows: those of five million. What does not
fit goes to a temporary folder."""

DIFFERENCES_SHOWN = 20
"""Differences that `semel compare` shows unless told otherwise; all are counted."""

DIFFERENCES_SHOWN_MAX = 1_000
"""Differences that it shows at most: for each a file may be read once more."""

FIND_PLACES_MAX = 1_000
"""Places of one id that `semel find` lists: an id of a broken producer may repeat for ever."""

BATCHES_SHOWN = 50
"""Batches that `semel batches` lists unless told otherwise."""

LETTERS_SHOWN = 20
"""Dead letters that `semel letters` prints unless told otherwise: three lines each."""

LETTERS_SHOWN_MAX = 10_000
"""Dead letters that it prints at most: they are in memory; a file of them is Parquet."""

LOSSES_SHOWN = 50
"""Recorded losses that `semel gaps` lists, from the newest on."""

NOTES_HELD = 200
"""Batches, the newest ones, that a target is held against before each batch: a table of an earlier
time lacks these first. Adopt, audit, check and `accept --moved` hold all."""

FILES_NAMED_MAX = 10
"""Files that a summary or an error names; `semel gaps` lists them all."""

NAMES_ASKED_MAX = 1_000
"""Names, the newest, whose batches a plan that takes nothing asks for."""

LOOK_AGAIN_SECONDS = 60
"""How long a run with source.on_empty: wait does nothing before it looks again."""

HOLDERS_SHOWN = 5
"""Batches that such a plan names, from the newest on."""

PIECE_ROWS_MAX = 8_192
"""Rows of a file that are read at once: some 800 kB. More make nothing faster."""

PIECE_BYTES_MAX = 8 << 20
"""Bytes of rows in memory (Arrow) that are handed on at once, where rows are long: a sink encodes
them in some four times as much."""

ROW_GROUP_BYTES = 64 << 20
"""Bytes of rows in memory (Arrow) of a row group that is written: readers often decode it whole."""

JSON_DEPTH_MAX = 500
"""Deepest value of a JSON column of a PostgreSQL: readers of JSON recurse, also PostgreSQL's."""

REFUSED_ROWS_MAX = 10_000
"""Rows of one committed batch that a table may refuse while the others land: each costs some ten
statements. When more are refused, the table is wrong, and not the rows."""

KAFKA_TRANSACTION_BYTES = 512 << 20
"""Default of sink.transaction_bytes: what a slow link (5 MB/s) sends in the time below."""

KAFKA_TRANSACTION_SECONDS = 120
"""How long a transaction may be open, before its broker aborts it. Until then who reads committed
messages waits for one whose producer is dead."""

KAFKA_QUEUED_BYTES = 128 << 20
"""Bytes of messages that a producer holds until they are sent."""

KEYS_TWICE_NAMED_MAX = 1_000
"""Keys of a batch that seem to be there twice and are examined; one of them is named."""

DAYS_SHOWN = 31
"""Intervals that `semel days` and its page list unless told otherwise."""

DAYS_MAX = 1_000
"""Intervals of one answer at most: a month of hours, or almost three years of days."""

DAYS_BATCHES_MAX = 10_000
"""Batches that are counted up for one answer at most."""

DAYS_BATCHES_NAMED = 3
"""Batches that one interval names, from the newest on."""

PAGE_BATCHES = 30
"""Batches of each pipeline that the page of all pipelines sums up."""

PAGE_LINES = 200
"""Claims or files of a batch that its page lists; `semel show` lists them all."""

PAGE_LOOK_SECONDS = 1.0
"""How long a page waits for a look at the source before it shows what the ledger knows."""

PAGE_LOOKS = 64
"""Such looks that wait, or whose answers are kept, in one server at most."""

PAGE_TOLD_SECONDS = 10.0
"""How long a server goes by the folders and the ledger that Airflow told it, before it asks anew."""

PAGE_CATALOG_BATCHES = 5_000
"""Newest batches whose repeats the page of a catalog counts by days."""

PAGE_ID_CHARS_MAX = 16_384
"""Characters of an id that the page looks for: an address has room for more, an id seldom."""

PAGE_BACKFILL_DAYS_MAX = 366
"""Days of a backfill from the page: one that asks for more is made in Airflow's own dialog."""

PAGE_CONFIRM_SECONDS = 900
"""How long a confirmation page may be confirmed: to read it, and ask somebody."""

EVENT_WINDOW_DAYS = 7
"""How long after its end a batch may still get its event: a week-end and more. What is older is
told to nobody, for Airflow's `db clean` may have removed its event."""

EVENT_BATCHES_MAX = 1_000
"""Batches of that window, the newest, whose events collect looks for: a batch each ten minutes."""

EVENTS_READ_MAX = 2_000
"""Events that one look reads, some 1 KB each: a batch's own is among the first after its end."""

EVENT_CLOCKS_SECONDS = 60
"""How far Airflow's clock may be behind the ledger's before a batch is told twice."""

EVENT_DAYS_MAX = 1_000
"""Days that an event names: 13 KB. A longer interval is told by its ends alone."""

NOTIFY_SECONDS = 10
"""How long the address of a pipeline's `notify` may take to connect, and to answer."""
