"""What `goose doctor` looks at, a subject a module. Nothing here changes anything."""
