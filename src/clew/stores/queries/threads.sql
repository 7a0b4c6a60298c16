-- name: select
-- Threads with where their head ended. {where} is made of the fixed conditions in the code.
SELECT
    thread.id, run.id, coalesce((SELECT max(seq) FROM journal WHERE journal.run = run.key), 0),
    coalesce(lease.done, 1), thread.created_at, thread.updated_at, thread.metadata, thread.key
FROM thread LEFT JOIN run ON run.key = thread.head LEFT JOIN lease ON lease.run = run.key
WHERE {where} ORDER BY thread.key DESC LIMIT :limit;

-- name: queue
-- Who waits for the thread, first come first.
SELECT run.id FROM queue JOIN run ON run.key = queue.run WHERE queue.thread = ? ORDER BY queue.place;

-- name: key
-- The number of a thread.
SELECT key FROM thread WHERE id = ?;

-- name: insert
-- A thread is made by the first run in it.
INSERT INTO thread (id, head, created_at, updated_at, metadata) VALUES (?, ?, ?, ?, '{}');

-- name: move
-- The head goes to another run.
UPDATE thread SET head = ?, updated_at = ? WHERE key = ?;

-- name: enqueue
-- Behind the last.
INSERT INTO queue (thread, place, run)
VALUES (?1, (SELECT coalesce(max(place), 0) + 1 FROM queue WHERE thread = ?1), ?2);

-- name: leave
-- A run that is head, or over, waits no more.
DELETE FROM queue WHERE run = ?;

-- name: next
-- The first of the queue, if the thread's head is finished and this one has not been called yet.
SELECT queue.run FROM thread
LEFT JOIN lease AS head ON head.run = thread.head
JOIN queue ON queue.thread = thread.key
JOIN run ON run.key = queue.run
WHERE thread.id = ? AND (head.done OR thread.head IS NULL) AND run.status = 'queued'
  AND queue.place = (SELECT min(place) FROM queue WHERE thread = thread.key);

-- name: behead
-- The head was pruned.
UPDATE thread SET head = NULL WHERE head = ?;
