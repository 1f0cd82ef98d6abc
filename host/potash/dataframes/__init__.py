"""Tables on drives for DataFrame libraries, which push conditions, columns and limits down to them.

- `potash.polars` and `potash.dataset`: what Polars, pyarrow and DuckDB use;
- `table`: a table on a drive, read by plans;
- `terms`: conditions that the drive decides as the library would;
- `polars_conditions`, `arrow_conditions`: conditions from the libraries' expressions.
"""
