"""What all processes of a device have done, on one time axis, for people to look at."""
