"""`clew demo`: real processes, a real ledger, a real SIGKILL; no key and no network."""
