"""Spark and toymq: a data source for PySpark, and the pipeline's jobs. Needs the extra [spark]."""
