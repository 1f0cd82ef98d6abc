"""The platform's vendor commands, and the link to the APU that carries them out."""
