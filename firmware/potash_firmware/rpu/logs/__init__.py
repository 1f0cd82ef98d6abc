"""What log pages and asynchronous events are made from."""
