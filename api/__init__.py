"""The process: composition root, ext-proc, REST, metrics, command line, tokenization."""
