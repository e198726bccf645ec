"""The command line, one module per command. Heavy packages such as torch are imported only when a command runs."""
