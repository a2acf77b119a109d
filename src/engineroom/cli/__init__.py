"""The command line: one thin file per verb, heavy imports inside the verbs' bodies."""
