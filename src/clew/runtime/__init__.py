"""The async shell: performs what the core asks for, and writes down what came of it."""
