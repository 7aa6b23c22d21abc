"""From a file to a GgufFile: every number is checked against the file's size before it is used."""
