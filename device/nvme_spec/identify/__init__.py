"""Identify: what can be asked for and the data structures that answer.

Three files: `structures` and their numbers, the `capabilities` that are bits in them, and `lists`.
NVM Express Base Specification 2.0, section 5.17; NVM Command Set Specification 1.0, section 4.1.5.
"""
