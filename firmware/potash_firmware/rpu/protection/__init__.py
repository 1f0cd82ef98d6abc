"""Protection information: its guards, how it is made and how it is checked."""
