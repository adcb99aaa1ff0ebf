"""Models: where weights and tokenizers come from and how they are loaded. Knows no engine, runner, Ray or HTTP."""
