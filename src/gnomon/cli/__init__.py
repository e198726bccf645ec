"""What the command line can do, a file for each group of commands. Nothing heavy is imported before it is needed."""
