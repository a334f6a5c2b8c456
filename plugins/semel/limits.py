"""Limits with their units and reasons. Each bounds a loop, a retry or a wait of semel."""

from datetime import timedelta

IDS_PER_CHUNK = 672
"""Ids in one stored chunk: 8,064 bytes, which fill one page of Postgres with their row, so that a
look-up reads one page. Part of the stored format, because stored chunks have this size."""

FILTER_BITS_PER_ID = 18
"""Minimum bits per id of the split-block Bloom filter: about 0.07 % false positives."""

BLOCK_BYTES = 4 << 20
"""Bytes parsed at once. A bad line sends only its block through the strict path."""

RECORD_BYTES_MAX = 64 << 20
"""Longest record. semel quarantines a longer line without building a row in memory."""

REJECTED_HEAD_BYTES = 4_096
"""Bytes that a dead letter keeps of a record longer than RECORD_BYTES_MAX."""

CSV_HEADER_BYTES_MAX = 1 << 20
"""Longest CSV header. A file without a line end in these bytes is not CSV."""

BISECT_WAYS = 8
"""Parts of a block with bad lines. semel cuts parts again until each bad line stands alone."""

TAIL_BYTES = 4_096
"""Bytes before the claimed end that semel hashes to recognise it."""

HEARTBEAT_SECONDS = 15
"""Seconds between two heartbeats of the driver of a running attempt."""

AUDIT_CHUNK_BYTES = 32 << 20
"""Bytes of source that the audit reads at once, and of output rows that its engine gets at once."""

CLOCKS_AHEAD = timedelta(minutes=5)
"""How far a record's time may be ahead of the ledger's clock when plan sees the record. A later
time does not complete any window."""

LOOK_AGAIN_SECONDS = 60
"""Seconds between two checks of the source by a run with source.on_empty: wait."""

PIECE_ROWS_MAX = 8_192
"""Rows that semel reads from a file at once: some 800 kB. More rows are not faster."""

REFUSED_ROWS_MAX = 10_000
"""Rows of one committed batch that a table may refuse while the others land. Each costs some ten
statements. If it refuses more, the table is at fault, not the rows."""

KAFKA_TRANSACTION_SECONDS = 120
"""How long a transaction may be open before the broker aborts it. If its producer dies, readers of
committed messages wait this long."""

LETTERS_SHOWN = 20
"""Dead letters that `semel letters` prints by default, three lines each."""

FILE_NAME_BYTES_MAX = 200
"""Longest final file name without its extension; file systems allow 255 bytes."""

FOLDER_NAME_BYTES_MAX = 255
"""Longest name of a folder of partition_by, as in most file systems."""

FOLDERS_BYTES_MAX = 2_048
"""Longest relative path of such folders; file systems allow 4,095 bytes for the whole path."""
