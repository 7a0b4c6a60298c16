-- name: target
-- Whether a run hears, and the number of its newest letter.
SELECT inbox_seq, done FROM lease WHERE run = ?;

-- name: number
-- One more letter, and something to do.
UPDATE lease SET inbox_seq = ?, ready = 1 WHERE run = ?;

-- name: stir
-- Who waits and gets a letter waits no longer: somebody has to look at it.
UPDATE run SET status = 'running', reasons = '[]', waiting_since = NULL WHERE key = ? AND status = 'waiting';

-- name: insert
-- A letter as it came.
INSERT INTO inbox (run, number, since, body) VALUES (?, ?, ?, ?);

-- name: select
-- What has not been taken yet.
SELECT body FROM inbox WHERE run = (SELECT key FROM run WHERE id = ?) ORDER BY number;

-- name: one
-- One letter, and since when it reads as it does.
SELECT since, body FROM inbox WHERE run = ? AND number = ?;

-- name: change
-- Another text in its place.
UPDATE inbox SET since = ?, body = ? WHERE run = ? AND number = ?;

-- name: delete
-- Withdrawn.
DELETE FROM inbox WHERE run = ? AND number = ?;

-- name: take
-- Taken into the journal, unless it was withdrawn or changed since the driver looked.
DELETE FROM inbox WHERE run = ? AND number = ? AND since <= ?;

-- name: known
-- A message that came before under the same id.
SELECT number FROM message WHERE run = ? AND id = ?;

-- name: remember
-- So that it is known when it comes again.
INSERT INTO message (run, id, number) VALUES (?, ?, ?);

-- name: ticket
-- One ticket, open or closed.
SELECT body, closed FROM ticket WHERE run = ? AND id = ?;

-- name: open_ticket
-- A ticket as its entry declares it; the same id again is the same ticket, which stays as it is.
INSERT OR IGNORE INTO ticket (run, id, kind, call, body, closed) VALUES (?, ?, ?, ?, ?, NULL);

-- name: close_ticket
-- Closed by an entry, without a decision.
UPDATE ticket SET closed = ? WHERE run = ? AND id = ? AND closed IS NULL;

-- name: close_tickets
-- The run is over, and with it what it asked.
UPDATE ticket SET closed = 'run_ended' WHERE run = ? AND closed IS NULL;

-- name: settle_ticket
-- Decided: it says how, and is no longer listed.
UPDATE ticket SET body = ?, closed = 'decided' WHERE run = ? AND id = ?;

-- name: tickets
-- Listed by run, oldest first, then call, then id. {where} is made of the fixed conditions in the code.
SELECT ticket.body FROM ticket CROSS JOIN run ON run.key = ticket.run
WHERE {where} ORDER BY ticket.run, ticket.call, ticket.id LIMIT :limit;

-- name: ticket_place
-- Where a ticket stands in that order.
SELECT ticket.run, ticket.call, ticket.id FROM ticket JOIN run ON run.key = ticket.run
WHERE run.id = ? AND ticket.id = ?;

-- name: decide
-- One row a ticket: the first decision is the only one.
INSERT OR IGNORE INTO decision (run, ticket, body) VALUES (?, ?, ?);

-- name: decision
-- The decision that stands.
SELECT body FROM decision WHERE run = ? AND ticket = ?;
