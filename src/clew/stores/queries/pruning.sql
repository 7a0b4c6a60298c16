-- All that belongs to a run and goes with it, in any order: nothing refers to it once its row is gone.

-- name: journal
DELETE FROM journal WHERE run = ?;
-- name: lease
DELETE FROM lease WHERE run = ?;
-- name: inbox
DELETE FROM inbox WHERE run = ?;
-- name: message
DELETE FROM message WHERE run = ?;
-- name: ticket
DELETE FROM ticket WHERE run = ?;
-- name: decision
DELETE FROM decision WHERE run = ?;
-- name: queue
DELETE FROM queue WHERE run = ?;
