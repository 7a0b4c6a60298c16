"""Which Clew this is; stands in the journal with each activation."""

VERSION = "0.1.0.dev0"
