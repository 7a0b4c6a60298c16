-- name: insert
-- A lease row as a run is made.
INSERT INTO lease (
    run, epoch, owner, until, place, unclean, not_before, agent, format, ready, done, wake_at, quarantined, inbox_seq
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update
-- All that may change of a lease row.
UPDATE lease SET
    epoch = ?, owner = ?, until = ?, place = ?, unclean = ?, not_before = ?, format = ?, ready = ?, done = ?,
    wake_at = ?, quarantined = ?, inbox_seq = ?
WHERE run = ?;

-- name: select
-- One lease row, and its owner.
SELECT lease.run, epoch, owner, until, place, unclean, not_before, agent, format, ready, done, wake_at, quarantined,
       inbox_seq, host, boot, pid, start, instance
FROM lease LEFT JOIN owner ON owner.key = lease.owner WHERE lease.run = ?;

-- name: wake
-- The run has something to do.
UPDATE lease SET ready = 1 WHERE run = ?;

-- name: ready
-- Free runs that have something to do, oldest first; the index holds no others.
SELECT run FROM lease
WHERE ready AND owner IS NULL AND NOT quarantined AND agent = :agent AND not_before <= :now AND format <= :format
  AND (:suspects OR unclean < :suspect)
ORDER BY not_before, run LIMIT :limit;

-- name: due
-- Free runs whose time has come, longest due first; the index holds only runs that wait for a time.
SELECT run FROM lease
WHERE wake_at IS NOT NULL AND owner IS NULL AND NOT quarantined AND agent = :agent AND wake_at <= :now
  AND not_before <= :now AND format <= :format AND (:suspects OR unclean < :suspect)
ORDER BY wake_at LIMIT :limit;

-- name: lapsed
-- What an owner holds no longer: until it is over, or, of a dead one, all.
SELECT run, agent FROM lease
WHERE owner IS NOT NULL AND owner = :owner AND until <= :until AND NOT quarantined AND not_before <= :now
  AND format <= :format
ORDER BY until;

-- name: agents_ready
-- From one agent of the index to the next, without reading what lies between.
WITH RECURSIVE found (agent) AS (
    SELECT (SELECT min(agent) FROM lease WHERE ready AND owner IS NULL AND NOT quarantined)
    UNION ALL
    SELECT (SELECT min(agent) FROM lease WHERE ready AND owner IS NULL AND NOT quarantined AND agent > found.agent)
    FROM found WHERE found.agent IS NOT NULL
)
SELECT agent FROM found WHERE agent IS NOT NULL;

-- name: agents_due
-- The same for runs that wait for a time.
WITH RECURSIVE found (agent) AS (
    SELECT (SELECT min(agent) FROM lease WHERE wake_at IS NOT NULL AND owner IS NULL AND NOT quarantined)
    UNION ALL
    SELECT (SELECT min(agent) FROM lease
            WHERE wake_at IS NOT NULL AND owner IS NULL AND NOT quarantined AND agent > found.agent)
    FROM found WHERE found.agent IS NOT NULL
)
SELECT agent FROM found WHERE agent IS NOT NULL;

-- name: next_wake
-- The earliest time that a free run of an agent waits for.
SELECT min(wake_at) FROM lease WHERE wake_at IS NOT NULL AND owner IS NULL AND NOT quarantined AND agent = ?;

-- name: renew
-- Only what is held still.
UPDATE lease SET until = ? WHERE run = (SELECT key FROM run WHERE id = ?) AND epoch = ? AND owner = ?;

-- name: owners
-- Everybody who may hold a lease: one row a process.
SELECT key, host, boot, pid, start, instance FROM owner;

-- name: owner
-- The number of a process.
SELECT key FROM owner WHERE host = ? AND boot = ? AND pid = ? AND start = ? AND instance = ?;

-- name: add_owner
-- A process that takes its first lease.
INSERT INTO owner (host, boot, pid, start, instance) VALUES (?, ?, ?, ?, ?);

-- name: forget_owner
-- A process that is gone and holds nothing any more.
DELETE FROM owner WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM lease WHERE owner IS NOT NULL AND owner = ?1);

-- name: mailed
-- The newest letter of a run.
SELECT inbox_seq FROM lease WHERE run = (SELECT key FROM run WHERE id = ?);
