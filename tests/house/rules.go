package house

// Rules lists the conventions. The words are what localTraces looks for: they differ from machine to machine.
func Rules(words []string) []Rule {
	return []Rule{
		{"package-comments", "a reader opening a folder sees what it is for", packageComments},
		{"exported-docs", "what others may call is explained", exportedDocs},
		{"mutex-comments", "one owner per state; a lock says what it protects", mutexComments},
		{"arrows", "imports point one way", arrows},
		{"handles-only", "many nodes live in one test process", handlesOnly},
		{"no-init", "nothing runs before main", noInit},
		{"no-state", "no state at package level", noState},
		{"one-exit", "one way out of a process", oneExit},
		{"no-panic", "errors are returned", noPanic},
		{"func-length", "a function fits on a screen", funcLength},
		{"file-length", "one noun a file", fileLength},
		{"signatures", "calls can be read", signatures},
		{"interfaces", "interfaces stay small", interfaces},
		{"no-twins", "families are data", noTwins},
		{"test-names", "test names are sentences", testNames},
		{"error-texts", "an error names the action", errorTexts},
		{"unfinished", "what is here is finished", unfinished},
		{"formatted", "one layout", formatted},
		{"dependency-reasons", "dependencies pay rent", dependencyReasons},
		{"local-traces", "the repository is the same everywhere", localTraces(words)},
		{"make-commands", "what a document says to type works", makeCommands},
		{"links", "links in documents lead somewhere", links},
	}
}
