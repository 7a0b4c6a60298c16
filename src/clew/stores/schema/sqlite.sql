-- Version 1. Pages are small, because a commit writes whole pages; rows that change often are kept apart from the
-- journal, which only ever grows at its end.

CREATE TABLE run (
    key INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again, so that no place in the journal changes its meaning
    id TEXT NOT NULL UNIQUE,
    start_digest TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    agent TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    origin TEXT NOT NULL,
    parent TEXT,
    root TEXT NOT NULL,
    base TEXT,
    base_run TEXT,
    status TEXT NOT NULL,
    reasons TEXT NOT NULL,
    message TEXT NOT NULL,
    tickets TEXT NOT NULL,
    waiting_since INTEGER,
    outcome TEXT,
    label TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    turns INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    usage TEXT NOT NULL,
    cost TEXT,
    inherited_usage TEXT NOT NULL,
    budget TEXT,
    reserved TEXT,
    metadata TEXT NOT NULL
);
CREATE INDEX run_of_thread ON run (thread_id);
CREATE INDEX run_of_agent ON run (agent);
CREATE INDEX run_of_root ON run (root);
CREATE INDEX run_by_status ON run (status);
CREATE INDEX run_on_base ON run (base_run) WHERE base_run IS NOT NULL;

-- The key grows with every commit: its order is the order of commits over all runs.
CREATE TABLE journal (
    place INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX journal_of_run ON journal (run, seq);

CREATE TABLE owner (
    key INTEGER PRIMARY KEY,
    host TEXT NOT NULL,
    boot TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    UNIQUE (host, boot, pid, start, instance)
);

-- Who drives a run, and all that a look for work reads.
CREATE TABLE lease (
    run INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    owner INTEGER,
    until INTEGER NOT NULL,
    place INTEGER NOT NULL,
    unclean INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    agent TEXT NOT NULL,
    format INTEGER NOT NULL,
    ready INTEGER NOT NULL,
    done INTEGER NOT NULL,
    wake_at INTEGER,
    quarantined INTEGER NOT NULL,
    inbox_seq INTEGER NOT NULL
);
-- A look for work starts from these three, which hold only runs that have something to do, or a time to do it.
CREATE INDEX lease_ready ON lease (agent, not_before) WHERE ready AND owner IS NULL AND NOT quarantined;
CREATE INDEX lease_due ON lease (agent, wake_at) WHERE wake_at IS NOT NULL AND owner IS NULL AND NOT quarantined;
CREATE INDEX lease_held ON lease (owner, until) WHERE owner IS NOT NULL;
CREATE INDEX lease_quarantined ON lease (run) WHERE quarantined;

-- `since` is the inbox number under which the present text came: a driver that read an older text may not commit it.
CREATE TABLE inbox (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,
    since INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- Kept when the letter is taken: a message that is sent again later is still the same message.
CREATE TABLE message (
    run INTEGER NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;

CREATE TABLE ticket (
    run INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    call TEXT NOT NULL,
    body BLOB NOT NULL,
    closed TEXT,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;
CREATE INDEX ticket_open ON ticket (run, call, id) WHERE closed IS NULL;

CREATE TABLE decision (
    run INTEGER NOT NULL,
    ticket TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, ticket)
) WITHOUT ROWID;

CREATE TABLE thread (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    head INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    metadata TEXT NOT NULL
);

CREATE TABLE queue (
    thread INTEGER NOT NULL,
    place INTEGER NOT NULL,
    run INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (thread, place)
) WITHOUT ROWID;

CREATE TABLE alias (
    name TEXT PRIMARY KEY,
    run TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE blob (
    digest TEXT PRIMARY KEY,
    body BLOB NOT NULL
);

CREATE TABLE tombstone (
    id TEXT PRIMARY KEY,
    start_digest TEXT NOT NULL,
    outcome TEXT NOT NULL,
    finished_at INTEGER NOT NULL
) WITHOUT ROWID;
