"""Reader of Nsight Systems exports: SQLite databases and folders of Parquet files."""
