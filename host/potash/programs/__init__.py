"""Programs for the accelerators before they are on a drive: compiled, looked into, tried out."""
