"""The pipeline's jobs, each a small DataFrame program; ``toymq_spark.cli`` runs them."""
