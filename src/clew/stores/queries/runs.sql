-- name: key
-- The number that stands for a run in every other table.
SELECT key FROM run WHERE id = ?;

-- name: id
-- What the number stands for.
SELECT id FROM run WHERE key = ?;

-- name: found
-- What an id stands for: a run, else an alias, else what is left of a pruned run.
SELECT run.id, run.key, run.start_digest FROM run WHERE id = ?1
UNION ALL SELECT alias.run, run.key, coalesce(run.start_digest, tombstone.start_digest)
FROM alias LEFT JOIN run ON run.id = alias.run LEFT JOIN tombstone ON tombstone.id = alias.run WHERE name = ?1
UNION ALL SELECT id, NULL, start_digest FROM tombstone WHERE id = ?1
LIMIT 1;

-- name: tombstone
-- What is left of a pruned run.
SELECT start_digest, outcome, finished_at FROM tombstone WHERE id = ?;

-- name: insert
-- A run's row as it is made.
INSERT INTO run (
    id, start_digest, thread_id, agent, fingerprint, origin, parent, root, base, base_run, status, reasons, message,
    tickets, waiting_since, outcome, label, created_at, started_at, updated_at, finished_at, turns, calls, attempts,
    usage, cost, inherited_usage, budget, reserved, metadata
) VALUES (
    :id, :start_digest, :thread_id, :agent, :fingerprint, :origin, :parent, :root, :base, :base_run, :status, :reasons,
    :message, :tickets, :waiting_since, :outcome, :label, :created_at, :started_at, :updated_at, :finished_at, :turns,
    :calls, :attempts, :usage, :cost, :inherited_usage, :budget, :reserved, :metadata
);

-- name: update
-- What a projection may change.
UPDATE run SET
    fingerprint = :fingerprint, base = :base, base_run = :base_run, status = :status, reasons = :reasons,
    message = :message, tickets = :tickets, waiting_since = :waiting_since, outcome = :outcome, started_at = :started_at, updated_at = :updated_at,
    finished_at = :finished_at, turns = :turns, calls = :calls, attempts = :attempts, usage = :usage, cost = :cost,
    inherited_usage = :inherited_usage, reserved = :reserved
WHERE key = :key;

-- name: select
-- Whole rows, with what the lease and the journal know better. {where} is made of the fixed conditions in the code.
SELECT
    run.id, run.thread_id, run.agent, run.fingerprint, run.origin, run.parent, run.root, run.base, run.status,
    lease.quarantined, run.reasons, run.message, run.tickets, run.waiting_since, run.outcome, run.label,
    run.created_at, run.started_at, run.updated_at, run.finished_at, run.turns, run.calls, run.attempts, run.usage,
    run.cost, run.inherited_usage, run.budget, run.reserved,
    (SELECT coalesce(max(seq), 0) FROM journal WHERE journal.run = run.key),
    lease.inbox_seq, lease.format, lease.wake_at, run.metadata
FROM run CROSS JOIN lease ON lease.run = run.key
WHERE {where} ORDER BY run.key DESC LIMIT :limit;

-- name: begun
-- The first driver has come.
UPDATE run SET started_at = ? WHERE key = ? AND started_at IS NULL;

-- name: activate
-- A queued run whose turn has come.
UPDATE run SET status = 'running' WHERE key = ?;

-- name: alias
-- Another name for a run.
INSERT INTO alias (name, run) VALUES (?, ?);

-- name: alias_of
-- What a name stands for.
SELECT run FROM alias WHERE name = ?;

-- name: on_base
-- The runs that go on from this one.
SELECT id FROM run WHERE base_run = ? ORDER BY key;

-- name: bury
-- What is kept of a pruned run.
INSERT INTO tombstone (id, start_digest, outcome, finished_at) VALUES (?, ?, ?, ?);

-- name: delete
-- The row itself; the rest of the run goes by its key.
DELETE FROM run WHERE key = ?;
