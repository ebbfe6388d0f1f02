"""The same work on a cluster: `spark` is the only module that knows an engine, `tasks` what its tasks do."""
