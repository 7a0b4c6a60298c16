-- name: standing
-- What a commit is checked against. Reads alone: an ordinary commit writes to no row but the journal's.
SELECT lease.epoch, lease.owner, lease.inbox_seq, lease.format,
       (SELECT max(seq) FROM journal WHERE journal.run = lease.run)
FROM lease WHERE lease.run = ?;

-- name: standings
-- The same for many runs as one value: the thread that writes then stops for the interpreter once, not once a run.
SELECT json_group_array(json_array(lease.run, lease.epoch, lease.owner IS NOT NULL, lease.inbox_seq, lease.format,
       (SELECT max(seq) FROM journal WHERE journal.run = lease.run)))
FROM lease WHERE lease.run IN (SELECT value FROM json_each(?));

-- name: append
-- The place is given by SQLite: one more than the last, so every commit writes at the end of the table.
INSERT INTO journal (run, seq, body) VALUES (?, ?, ?);

-- name: read
-- The entries of a run in order.
SELECT body FROM journal WHERE run = ? AND seq > ? AND seq <= ? ORDER BY seq;

-- name: latest
-- From the end backwards, until the reader has seen enough.
SELECT seq, body FROM journal WHERE run = ? ORDER BY seq DESC;

-- name: since
-- All runs in commit order: one writer at a time makes the order of places that of commits. Marks have no run.
SELECT journal.place, run.id, journal.body
FROM journal CROSS JOIN run ON run.key = journal.run
WHERE journal.place > ? ORDER BY journal.place LIMIT ?;

-- name: newest
-- Where the journal ends.
SELECT coalesce(max(place), 0) FROM journal;

-- name: last_seq
-- The last entry of a run.
SELECT coalesce(max(seq), 0) FROM journal WHERE run = ?;

-- name: last_bodies
-- The newest entries of all runs, for the time that they bear.
SELECT body FROM journal WHERE run <> 0 ORDER BY place DESC LIMIT ?;

-- name: mark
-- Holds a place whose entry was pruned, so that no later entry gets it: a cursor must not pass entries unseen.
INSERT OR IGNORE INTO journal (place, run, seq, body) VALUES (?1, 0, ?1, x'');

-- name: sweep_marks
-- A mark has done its work once something stands behind it.
DELETE FROM journal WHERE run = 0 AND seq < (SELECT max(place) FROM journal);

-- name: keep_blob
-- The digest says what it holds, so who comes first does not matter.
INSERT OR IGNORE INTO blob (digest, body) VALUES (?, ?);

-- name: blob
-- One stored value.
SELECT body FROM blob WHERE digest = ?;
