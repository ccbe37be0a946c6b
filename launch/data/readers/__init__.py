"""One file for each format of files: a reader gives the records of a file in order."""
