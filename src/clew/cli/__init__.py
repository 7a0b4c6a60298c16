"""The command line: one file a command. Nothing below imports it, and it is loaded only when somebody types `clew`."""
