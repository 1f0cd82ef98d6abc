"""The time that a drive of flash takes: pure functions of a drive's state and a request.

`profile` is what a drive is built of, `reference` the model as one reads it, `engine` the same over
arrays, and `drive` its interface. Nothing here reads a clock or waits.
"""
