"""Exporters: metrics for Prometheus; spans for OpenTelemetry, with the extra ``[observability]``. They change nothing else."""
