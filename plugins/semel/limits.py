"""Limits with their units and reasons. Every loop, retry and wait of semel is bounded by one."""

from datetime import timedelta

IDS_PER_CHUNK = 672
"""Ids in one stored chunk: 8,064 bytes, which with its row fill one page of Postgres, so a look-up
reads one page. Part of the stored format: what is stored was cut by it."""

FILTER_BITS_PER_ID = 18
"""Bits of the split-block Bloom filter an id gets at least: about 0.07 % false positives."""

BLOCK_BYTES = 4 << 20
"""Bytes parsed at once. One bad line makes its block go through the strict path, not the split."""

RECORD_BYTES_MAX = 64 << 20
"""Longest record. A longer line is quarantined without being held in memory as a row."""

REJECTED_HEAD_BYTES = 4_096
"""Bytes that a dead letter keeps of a record longer than RECORD_BYTES_MAX."""

CSV_HEADER_BYTES_MAX = 1 << 20
"""Longest CSV header. What is longer has no line end at all, and is not a CSV file."""

BISECT_WAYS = 8
"""Parts that a block with bad lines is cut into, again and again, until they stand alone."""

TAIL_BYTES = 4_096
"""Bytes before the claimed end that are hashed to recognise it."""

HEARTBEAT_SECONDS = 15
"""How often the driver of a running attempt signs in."""

AUDIT_CHUNK_BYTES = 32 << 20
"""Bytes of source that the audit reads at once, and of output rows that it hands to its engine."""

CLOCKS_AHEAD = timedelta(minutes=5)
"""How far the clock that gave a record its time may be ahead of the ledger's, when a plan saw it. A
record of a later time makes no window complete."""

LOOK_AGAIN_SECONDS = 60
"""How long a run with source.on_empty: wait does nothing before it looks again."""

PIECE_ROWS_MAX = 8_192
"""Rows of a file that are read at once: some 800 kB. More make nothing faster."""

REFUSED_ROWS_MAX = 10_000
"""Rows of one committed batch that a table may refuse while the others land: each costs some ten
statements. When more are refused, the table is wrong, and not the rows."""

KAFKA_TRANSACTION_SECONDS = 120
"""How long a transaction may be open, before its broker aborts it. Until then who reads committed
messages waits for one whose producer is dead."""

LETTERS_SHOWN = 20
"""Dead letters that `semel letters` prints unless told otherwise: three lines each."""

FILE_NAME_BYTES_MAX = 200
"""Longest final file name without its extension; file systems allow 255 bytes."""

FOLDER_NAME_BYTES_MAX = 255
"""Longest name of a folder of partition_by: as file systems allow."""

FOLDERS_BYTES_MAX = 2_048
"""Longest path of such folders below a folder: file systems allow 4,095 bytes in all."""
